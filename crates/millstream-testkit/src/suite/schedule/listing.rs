//! Waiting messages can be read: one by one, in pages, and as counts.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::schedule::{Due, Scheduled, Scheduling, Waiting};

use super::{HOUR, all, id, place_all, schedule, scheduling, shown, suite};
use crate::case::{Verdict, ensure, equal};
use crate::harness::{Harness, foreign};

suite!("schedule":
    a_message_that_waits_is_shown_as_it_is needs [ListScheduled],
    what_waits_is_listed_in_order_page_by_page needs [ListScheduled],
    a_page_ends_in_the_midst_of_one_millisecond needs [ListScheduled],
    a_page_goes_on_behind_a_message_that_is_gone needs [ListScheduled],
    a_page_is_bounded needs [ListScheduled],
    what_waits_is_counted needs [ListScheduled],
);

async fn a_message_that_waits_is_shown_as_it_is(h: Harness) -> Verdict {
    for place in h.places().await? {
        let due = h.now().await?.saturating_add(Duration::from_millis(3_600_000));
        let name = "order 42: refund, ünïcode";
        let message = Scheduling { fields: foreign(), ..scheduling(&place, name, Due::At(due))? };
        equal!(h.backend.schedule().get(&place, &id(name)?).await?, None, "a message before it is scheduled");
        schedule(&h, &[message]).await?;
        let expected = Scheduled::new(id(name)?, due, foreign());
        equal!(shown(&h, &place, name).await?, expected, "a message that waits");
        let listed = h.backend.schedule().scheduled(&place, None, 10).await?;
        equal!(listed, [expected], "a list of one that waits");
        equal!(h.backend.schedule().get(&place, &id("unknown")?).await?, None, "a message that is not there");
        h.backend.schedule().cancel(&place, &[id(name)?]).await?;
        equal!(h.backend.schedule().get(&place, &id(name)?).await?, None, "a message that was cancelled");
    }
    Ok(())
}

/// Ids in an order that differs from the scheduling order and the due order, with pairs of equal due times.
const MESSAGES: [(&str, u64); 9] =
    [("d", 3), ("b", 1), ("i", 1), ("a", 4), ("h", 0), ("c", 3), ("g", 2), ("e", 3), ("f", 4)];

/// By due time, then by id for the same millisecond.
const ORDER: [&str; 9] = ["h", "b", "i", "g", "c", "d", "e", "a", "f"];

async fn what_waits_is_listed_in_order_page_by_page(h: Harness) -> Verdict {
    for place in h.places().await? {
        let later = h.now().await?.saturating_add(Duration::from_millis(3_600_000));
        place_all(
            &h,
            &place,
            MESSAGES.map(|(id, due)| (id, Due::At(later.saturating_add(Duration::from_millis(due))))),
        )
        .await?;
        equal!(all(&h, &place).await?, ORDER, "all in one page");
        for limit in [1, 2, 4, 9, 100] {
            let mut listed = Vec::new();
            let mut after = None;
            loop {
                let page = h.backend.schedule().scheduled(&place, after, limit).await?;
                ensure!(page.len() <= limit, "a page of {}, {limit} were asked for", page.len());
                let Some(last) = page.last() else { break };
                after = Some((last.due, last.id.clone()));
                listed.extend(page.iter().map(|scheduled| scheduled.id.to_string()));
                ensure!(listed.len() <= ORDER.len(), "{limit} a page, there is no end: {listed:?}");
            }
            equal!(listed, ORDER, "all, {limit} a page");
        }
    }
    Ok(())
}

async fn a_page_ends_in_the_midst_of_one_millisecond(h: Harness) -> Verdict {
    for place in h.places().await? {
        let later = h.now().await?.saturating_add(Duration::from_millis(3_600_000));
        let messages: Vec<_> = (0..30).map(|n| format!("{n:02}")).collect();
        place_all(&h, &place, messages.iter().map(|id| (id.as_str(), Due::At(later)))).await?;
        let mut listed = Vec::new();
        for from in (0..30).step_by(7) {
            let after =
                listed.last().map(|name| Ok::<_, crate::Violation>((later, id(name)?))).transpose()?;
            let page = h.backend.schedule().scheduled(&place, after, 7).await?;
            equal!(page.len(), 7.min(30 - from), "messages in the page from {from}");
            listed.extend(page.iter().map(|scheduled| scheduled.id.to_string()));
        }
        equal!(listed, messages, "all of one millisecond");
    }
    Ok(())
}

async fn a_page_goes_on_behind_a_message_that_is_gone(h: Harness) -> Verdict {
    for place in h.places().await? {
        let later = h.now().await?.saturating_add(Duration::from_millis(3_600_000));
        place_all(
            &h,
            &place,
            MESSAGES.map(|(id, due)| (id, Due::At(later.saturating_add(Duration::from_millis(due))))),
        )
        .await?;
        for (gone, due, behind) in
            [("d", later.saturating_add(Duration::from_millis(3)), ["e", "a"]), ("h", later, ["b", "i"])]
        {
            h.backend.schedule().cancel(&place, &[id(gone)?]).await?;
            let page = h.backend.schedule().scheduled(&place, Some((due, id(gone)?)), 2).await?;
            let listed: Vec<_> = page.iter().map(|scheduled| scheduled.id.as_str()).collect();
            equal!(listed, behind, "what stands behind {gone}, which is gone");
        }
    }
    Ok(())
}

async fn a_page_is_bounded(h: Harness) -> Verdict {
    use millstream_core::schedule::MAX_PAGE;
    for place in h.places().await? {
        let messages: Vec<_> = (0..MAX_PAGE + 5).map(|n| format!("{n:04}")).collect();
        place_all(&h, &place, messages.iter().map(|id| (id.as_str(), Due::In(HOUR)))).await?;
        let page = h.backend.schedule().scheduled(&place, None, 1_000_000).await?;
        ensure!((1..=MAX_PAGE).contains(&page.len()), "{} messages in one page", page.len());
        let none = h.backend.schedule().scheduled(&place, None, 0).await?;
        equal!(none.len(), 0, "messages in a page of none");
    }
    Ok(())
}

async fn what_waits_is_counted(h: Harness) -> Verdict {
    for place in h.places().await? {
        equal!(h.backend.schedule().waiting(&place).await?, Waiting::default(), "where nothing waits");
        place_all(
            &h,
            &place,
            [
                ("a", Due::At(Timestamp::from_millis(1))),
                ("b", Due::In(HOUR)),
                ("c", Due::At(Timestamp::from_millis(2))),
            ],
        )
        .await?;
        place_all(&h, &place, [("d", Due::In(HOUR)), ("e", Due::In(HOUR))]).await?;
        let waiting = h.backend.schedule().waiting(&place).await?;
        let first = Some(Timestamp::from_millis(1));
        equal!(waiting, Waiting { first, ..Waiting::new(5, 2) }, "five, of which two are due");
        h.backend.schedule().cancel(&place, &[id("a")?, id("b")?]).await?;
        let waiting = h.backend.schedule().waiting(&place).await?;
        let first = Some(Timestamp::from_millis(2));
        equal!(waiting, Waiting { first, ..Waiting::new(3, 1) }, "three, of which one is due");
    }
    Ok(())
}
