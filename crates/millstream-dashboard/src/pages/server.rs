//! The server: what the doctor finds, and memory.

use millstream::admin::{Level, Report, Server, diagnose};

use crate::failure::Failure;
use crate::request::context::Context;
use crate::view::cell::{Cell, Tone};
use crate::view::format;
use crate::view::{Page, Part, Table};

fn tone(level: Level) -> Tone {
    match level {
        Level::Ok => Tone::Good,
        Level::Warn => Tone::Warn,
        _ => Tone::Bad,
    }
}

/// Words for the worst of the reports.
pub(crate) fn summary(reports: &[Report]) -> (Tone, String) {
    let count = |of: Tone| reports.iter().filter(|report| tone(report.level) == of).count() as u64;
    match (count(Tone::Bad), count(Tone::Warn)) {
        (0, 0) => (Tone::Good, "ok".to_owned()),
        (0, warnings) => (Tone::Warn, format::of(warnings, "warning", "warnings")),
        (errors, _) => (Tone::Bad, format::of(errors, "error", "errors")),
    }
}

/// Shows the state of the server, or of each primary of a cluster.
pub(crate) async fn show(cx: Context) -> Result<Page, Failure> {
    let servers = cx.app.reading.servers().await?;
    let reports = diagnose(&servers);
    let mut page = Page::new("Redis").live();
    let (tone_of_all, text) = summary(&reports);
    let mut facts = vec![("Doctor", Cell::chip(text, tone_of_all))];
    if servers.len() > 1 {
        facts.push(("Servers", Cell::count(servers.len() as u64)));
    }
    page.push(Part::facts("", facts));
    // Of one server, its name would be an empty column.
    let with_nodes = reports.iter().any(|report| report.node.is_some());
    let titles: Vec<&str> = ["Level", "Subject", "Server", "Found", "Advice"]
        .into_iter()
        .filter(|it| with_nodes || *it != "Server")
        .collect();
    page.push(Part::Table(Table::new("What the doctor finds", &titles, "Nothing was reported.").rows(
        reports.iter().map(|report| {
            let mut row = vec![
                Cell::chip(report.level.to_string(), tone(report.level)),
                Cell::text(report.subject.as_str()),
            ];
            if with_nodes {
                row.push(report.node.as_deref().map_or_else(Cell::none, Cell::mono));
            }
            row.push(Cell::text(report.found.as_str()));
            row.push(if report.advice.is_empty() {
                Cell::none()
            } else {
                Cell::text(report.advice.as_str())
            });
            row
        }),
    )));
    if let [one] = &servers[..] {
        let known = TITLES.into_iter().map(|title| title.trim_start_matches('>')).zip(server(one));
        page.push(Part::facts(
            "Server",
            known
                .filter(|(_, cell)| !cell.class().contains("none"))
                .skip(usize::from(one.address.is_none()))
                .collect(),
        ));
        return Ok(page);
    }
    Ok(page.table(Table::new("Servers", &TITLES, "No server answers.").rows(servers.iter().map(server))))
}

const TITLES: [&str; 10] = [
    "Server",
    "Version",
    "Role",
    ">Memory",
    ">Limit",
    ">Evicted",
    ">Clients",
    ">Round trip",
    ">Up for",
    "Saved",
];

fn server(server: &Server) -> Vec<Cell> {
    let or_unknown =
        |text: &Option<String>| text.as_deref().map_or_else(|| Cell::toned("?", Tone::Dim), Cell::text);
    let address = match &server.away {
        Some(why) => Cell::toned(format!("{}: {why}", server.address.as_deref().unwrap_or("?")), Tone::Bad),
        None => Cell::mono(server.address.as_deref().unwrap_or("the server")),
    };
    let version = server.version.as_deref().unwrap_or("?");
    vec![
        address,
        Cell::text(format!("{} {version}", server.kind)),
        or_unknown(&server.role),
        server.used_memory.map_or_else(|| Cell::known(None), Cell::bytes),
        server.max_memory.filter(|bytes| *bytes > 0).map_or_else(|| Cell::text("none"), Cell::bytes),
        Cell::alarm(server.evicted, Tone::Bad),
        server.clients.map_or_else(
            || Cell::known(None),
            |(now, most)| Cell::text(format!("{} of {}", format::count(now), format::count(most))),
        ),
        Cell::duration_or_none(server.latency),
        Cell::duration_or_none(server.uptime),
        match server.disk_ok {
            Some(true) => Cell::toned("ok", Tone::Good),
            Some(false) => Cell::toned("the last write failed", Tone::Bad),
            None => Cell::toned("?", Tone::Dim),
        },
    ]
}
