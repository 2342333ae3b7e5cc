//! Order, filter and pages of tables, as the query of a page has them.

use super::cell::Cell;
use super::href::Href;
use super::{Page, Part, Table};

/// Number of rows from which on a table has a filter.
const MANY: usize = 8;

/// Filter of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Find {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) action: Href,
    /// The rest of the query.
    pub(crate) hidden: Vec<(String, String)>,
}

/// Order of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SortOrder {
    Ascending,
    Descending,
}

impl SortOrder {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ascending => "ascending",
            Self::Descending => "descending",
        }
    }
}

/// Returns a title as it is in a query: `Oldest not settled` is `oldest-not-settled`.
fn slug(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

impl Page {
    /// Sorts, filters and cuts the tables as the query says, and adds the links for it. `here` is the address without a query.
    pub(crate) fn arrange(&mut self, query: &[(&str, &str)], here: &Href) {
        for part in &mut self.parts {
            if let Part::Table(table) = part {
                table.arrange(query, here);
            }
        }
    }
}

/// Returns the value of a parameter, or nothing.
fn raw<'a>(query: &[(&str, &'a str)], name: &str) -> &'a str {
    query.iter().find(|(found, _)| *found == name).map_or("", |(_, value)| *value)
}

/// Returns the number of the page that is asked for.
fn number(query: &[(&str, &str)], page: &str, pages: usize) -> usize {
    raw(query, page).parse::<usize>().unwrap_or(1).clamp(1, pages.max(1))
}

impl Table {
    /// Returns the names of its parameters: the order, the filter, and the page.
    fn names(&self) -> [String; 3] {
        let name =
            |of: &str| if self.name.is_empty() { of.to_owned() } else { format!("{}-{of}", self.name) };
        ["sort", "find", "page"].map(name)
    }

    /// Makes its rows: of thousands only those that the page shows, unless all are sorted or filtered by what they show. The others
    /// are empty, and are cut when the table is arranged.
    pub(crate) fn made(self, query: &[(&str, &str)], count: usize, row: impl Fn(usize) -> Vec<Cell>) -> Self {
        let [sort, find, page] = self.names();
        let first = (number(query, &page, count.div_ceil(self.paged.max(1))) - 1) * self.paged;
        let all = self.paged == 0 || !raw(query, &sort).is_empty() || !raw(query, &find).is_empty();
        let shown = first..first + self.paged;
        let is_made = |at: usize| all || shown.contains(&at);
        self.rows((0..count).map(|at| if is_made(at) { row(at) } else { Vec::new() }))
    }

    fn arrange(&mut self, query: &[(&str, &str)], here: &Href) {
        let [sort, find, page] = self.names();
        let others = |without: &[&str]| {
            let rest = query.iter().filter(|(name, value)| !without.contains(name) && !value.is_empty());
            rest.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        let link = |without: &[&str]| {
            others(without).iter().fold(here.clone(), |href, (name, value)| href.with(name, value))
        };
        let raw = |name: &str| raw(query, name);
        let text = raw(&find).to_lowercase();
        if self.rows.len() > MANY || !text.is_empty() {
            let (value, hidden) = (raw(&find).to_owned(), others(&[&find, &page]));
            self.find = self.filters.then(|| Find { name: find, value, action: here.clone(), hidden });
        }
        let all = self.rows.len();
        if self.filters && !text.is_empty() {
            self.rows.retain(|row| row.iter().any(|cell| cell.all_text().contains(text.trim())));
            if self.rows.is_empty() && all > 0 {
                self.empty = format!("No row contains “{}”.", text.trim());
            }
        }
        let wanted = raw(&sort);
        let (wanted, is_down) = wanted.strip_prefix('-').map_or((wanted, false), |it| (it, true));
        let base = link(&[&sort, &page]);
        for at in 0..self.columns.len() {
            let column = &mut self.columns[at];
            let slug = slug(&column.title.to_string());
            // Curves and buttons have no order.
            let made = || self.rows.iter().filter_map(|row| row.get(at));
            let has_order = made().all(|it| it.chart.is_none() && it.buttons.is_empty());
            let has_text = made().any(|it| !it.all_text().is_empty());
            if slug.is_empty() || all < 2 || !has_text || !has_order {
                continue;
            }
            column.order = (slug == wanted).then_some(if is_down {
                SortOrder::Descending
            } else {
                SortOrder::Ascending
            });
            // Of numbers the largest are wanted first.
            let next_down = column.order.map_or(column.number, |order| order == SortOrder::Ascending);
            column.sort =
                Some(base.clone().with(&sort, format!("{}{slug}", if next_down { "-" } else { "" })));
            if column.order.is_some() {
                // What is unknown is last in both.
                self.rows.sort_by_cached_key(|row| RowPlace(row[at].place(), is_down));
            }
        }
        if self.paged > 0 && self.rows.len() > self.paged {
            let pages = self.rows.len().div_ceil(self.paged);
            let number = number(query, &page, pages);
            self.rows = self.rows.drain(..).skip((number - 1) * self.paged).take(self.paged).collect();
            let base = link(&[&page]);
            let mut links = Vec::new();
            if number > 1 {
                links.push(("Previous".into(), base.clone().with(&page, number - 1)));
            }
            if number < pages {
                links.push(("Next".into(), base.with(&page, number + 1)));
            }
            self.links.splice(0..0, links);
            *self = std::mem::take(self).note(format!("Page {number} of {pages}"));
        }
    }
}

/// Place of a row in an order, which may be the reverse one.
#[derive(PartialEq)]
struct RowPlace((u8, f64, String), bool);

impl Eq for RowPlace {}

impl PartialOrd for RowPlace {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RowPlace {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (Self(a, is_down), Self(b, _)) = (self, other);
        let order = a.1.total_cmp(&b.1).then_with(|| a.2.cmp(&b.2));
        let unknown = (a.0 == 2).cmp(&(b.0 == 2));
        let order = if *is_down { b.0.cmp(&a.0).then(order.reverse()) } else { a.0.cmp(&b.0).then(order) };
        unknown.then(order)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn arranged(query: &str) -> (Vec<String>, Table) {
        let mut table = Table::new("Groups", &["Group", ">Backlog", ">Oldest"], "None.");
        table.paged = 3;
        let row = |name: &str, backlog: Cell, oldest: u64| {
            vec![Cell::text(name), backlog, Cell::duration(Duration::from_secs(oldest))]
        };
        table.rows = vec![
            row("a", Cell::count(1_200), 59),
            row("b", Cell::count(9), 60),
            row("c", Cell::known(None), 3_600),
            row("d", Cell::text("≥ 10,000"), 61),
        ];
        let pairs: Vec<_> = query.split('&').filter_map(|it| it.split_once('=')).collect();
        let mut page = Page::new("x").table(table);
        page.arrange(&pairs, &Href::of("/overview", &[]));
        let Some(Part::Table(table)) = page.parts.pop() else { panic!("a table") };
        (table.rows.iter().map(|row| row[0].text.to_string()).collect(), table)
    }

    #[test]
    fn rows_are_sorted_by_value_and_what_is_unknown_is_last() {
        assert_eq!(arranged("").0, ["a", "b", "c"], "as they came");
        assert_eq!(arranged("sort=backlog").0, ["b", "a", "d"]);
        assert_eq!(arranged("sort=-backlog").0, ["d", "a", "b"]);
        assert_eq!(arranged("sort=-backlog&page=2").0, ["c"]);
        assert_eq!(arranged("sort=-oldest").0, ["c", "d", "b"]);
        assert_eq!(arranged("sort=nothing").0, ["a", "b", "c"]);
        let table = arranged("sort=-backlog&x=1").1;
        let links: Vec<_> = table.columns.iter().map(|it| it.sort.as_ref().map_or("", Href::path)).collect();
        assert_eq!(
            links,
            ["overview?x=1&sort=group", "overview?x=1&sort=backlog", "overview?x=1&sort=-oldest"]
        );
        assert_eq!(
            table.links,
            [(
                "Next".into(),
                Href::of("/overview", &[]).with("sort", "-backlog").with("x", 1).with("page", 2)
            )]
        );
    }

    #[test]
    fn rows_are_filtered_by_what_they_show() {
        assert_eq!(arranged("find=10%2C000").0, [] as [&str; 0]);
        assert_eq!(arranged("find=10,000").0, ["d"]);
        let (none, table) = arranged("find=ZZ");
        assert!(none.is_empty() && table.empty == "No row contains “zz”." && table.find.is_some());
    }

    #[test]
    fn of_thousands_only_the_rows_of_the_page_are_made() {
        let made = |query: &str| {
            let (pairs, count) =
                (query.split_once('=').into_iter().collect::<Vec<_>>(), std::cell::Cell::new(0));
            let table = Table::new("Topics", &["Topic", ">Entries"], "None.").paged(25);
            let mut table = table.made(&pairs, 2_000, |at| {
                count.set(count.get() + 1);
                vec![Cell::text(format!("t{at:04}")), Cell::count(at as u64)]
            });
            table.arrange(&pairs, &Href::of("/overview", &[]));
            assert_eq!(table.rows.len(), 25, "{query}");
            (count.get(), table.rows[0][0].text.to_string())
        };
        assert_eq!(made(""), (25, "t0000".to_owned()));
        assert_eq!(made("page=3"), (25, "t0050".to_owned()));
        assert_eq!(made("page=99999"), (25, "t1975".to_owned()));
        assert_eq!(made("sort=-entries"), (2_000, "t1999".to_owned()), "an order is one of all");
    }
}
