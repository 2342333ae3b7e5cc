//! Locks and leaders: who holds them, and who waits.

use millstream::admin::{LockCursor, LockName, LockState};
use millstream::crates::core::locks::ELECTION;

use crate::access::Permission;
use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::paths;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::cell::{Cell, Tone};
use crate::view::form::{Field, Form};
use crate::view::href::Href;
use crate::view::{Page, Part, Table};

/// Shows locks that are held or waited for.
pub(crate) async fn list(cx: Context) -> Result<Page, Failure> {
    let from = cx.query.text("after")?.map(|after| LockCursor(after.to_owned()));
    let found = cx.app.reading.locks(from).await?;
    let mut locks: Vec<&LockState> = found.locks.iter().collect();
    locks.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    let (leaders, locks): (Vec<_>, Vec<_>) =
        locks.into_iter().partition(|lock| lock.name.as_str().starts_with(ELECTION));
    let titles = ["Lock", "Holder", ">Fence", ">Ends in", ">Waiting", ">The first waits for", ""];
    let mut held = Table::new("Locks", &titles, "No lock is held or waited for.");
    held.rows = locks.into_iter().map(|lock| row(&cx, lock, lock.name.as_str())).collect();
    let titles = ["Election", "Leader", ">Fence", ">Ends in", ">Candidates", ">The first waits for", ""];
    let mut elections = Table::new("Leaders", &titles, "There is no election.");
    elections.rows =
        leaders.into_iter().map(|lock| row(&cx, lock, &lock.name.as_str()[ELECTION.len()..])).collect();
    if let Some(LockCursor(next)) = &found.next {
        held = held.link("More", Href::of(paths::LOCKS, &[]).with("after", next));
    }
    Ok(Page::new("Locks and leaders").live().table(held).table(elections))
}

fn row(cx: &Context, lock: &LockState, shown: &str) -> Vec<Cell> {
    let holder = lock.holder.as_ref();
    let release = holder.filter(|_| cx.access.allows(Permission::Admin)).map(|holder| {
        let href =
            Href::of(paths::LOCK_RELEASE, &[]).with("name", lock.name.as_str()).with("fence", holder.epoch);
        vec![("release…".into(), href)]
    });
    vec![
        Cell::mono(shown),
        holder.map_or_else(Cell::none, |holder| Cell::mono(holder.owner.as_str())),
        holder.map_or_else(Cell::none, |holder| Cell::text(holder.epoch.to_string())),
        holder.map_or_else(Cell::none, |holder| Cell::duration(holder.expires_in)),
        Cell::count(lock.waiting),
        Cell::duration_or_none(lock.first_waits),
        Cell::links(release.unwrap_or_default()),
    ]
}

/// Asks before a lock is released by force.
pub(crate) async fn confirm(cx: Context) -> Result<Page, Failure> {
    let (name, fence): (LockName, u64) = (cx.query.needed("name")?, cx.query.needed("fence")?);
    let state = cx.admin().lock(&name).await?;
    let mut page = Page::new(format!("Release {name}")).crumb("Locks", Href::of(paths::LOCKS, &[]));
    let why = "The holder is not stopped: it learns of it with its next renewal. Until then two clients may work under the lock, \
               and only the fence tells them apart. A holder that died is replaced by itself.";
    page.push(Part::notice(Tone::Warn, why));
    let Some(holder) = state.holder.filter(|holder| holder.epoch == fence) else {
        return Ok(page.with(Part::notice(Tone::Plain, "The lock has another holder by now, or none.")));
    };
    page.push(Part::facts(
        "",
        vec![("Holder", Cell::mono(holder.owner)), ("Fence", Cell::text(fence.to_string()))],
    ));
    let field = Field::new("confirm", format!("Type {name} to confirm"), "").required();
    let form =
        Form::action("Release the lock", Href::of(paths::LOCK_RELEASE, &[]), vec![field], "Release").danger();
    Ok(page.with(Part::Form(form.hide("name", name.as_str()).hide("fence", fence.to_string()))))
}

/// Releases a lock by force.
pub(crate) async fn release(cx: Context, params: Params) -> Result<Href, Failure> {
    let (name, fence): (LockName, u64) = (params.needed("name")?, params.needed("fence")?);
    params.confirmed(name.as_str())?;
    let admin = cx.admin();
    let order = Order::new("lock release", Subject::lock(&name).select("fence", fence.to_string()))
        .expecting(Some(1));
    let why = "the lock has another holder by now, or none";
    cx.act_once(order, why, async move { admin.release_lock(&name, fence).await }).await
}
