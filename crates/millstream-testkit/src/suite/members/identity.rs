//! Two instances with the same name.

use millstream_core::{ErrorKind, Partition};

use super::{Club, suite};
use crate::case::{Verdict, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};

suite!("members":
    an_id_in_use_is_not_taken_by_chance,
    who_joins_takes_an_id_over_and_fences_who_had_it,
    who_joins_takes_an_id_over_that_ran_out,
    leaving_after_a_takeover_takes_nobody_out,
);

async fn an_id_in_use_is_not_taken_by_chance(h: Harness) -> Verdict {
    let club = Club::new(h, 2).await?;
    let ann = club.joined("ann").await?;
    let before = club.roster().await?;
    let second = club.member("ann", LONG)?.at_most(1);
    refused(club.beat(&second).await, ErrorKind::Fenced, "the heartbeat of a second instance")?;
    equal!(club.roster().await?, before, "the group after a refused heartbeat");
    equal!(club.beat(&ann).await?.version, before.version, "the version after a refused heartbeat");
    Ok(())
}

async fn who_joins_takes_an_id_over_and_fences_who_had_it(h: Harness) -> Verdict {
    let club = Club::new(h, 2).await?;
    let first = club.joined("ann").await?;
    let second = club.member("ann", LONG)?.pinned_to([Partition(1)]);
    equal!(club.join(&second).await?.members, 1, "members after a takeover of an id");
    let taken = club.roster().await?;
    equal!(taken.members, vec![second.clone()], "members after a takeover of an id");
    for _ in 0..2 {
        refused(club.beat(&first).await, ErrorKind::Fenced, "the heartbeat of who had the id before")?;
    }
    equal!(club.roster().await?, taken, "the group after refused heartbeats");
    equal!(club.beat(&second).await?.members, 1, "members after the next heartbeat");
    Ok(())
}

/// Also the id of a member that has not been dropped yet and that others may miss.
async fn who_joins_takes_an_id_over_that_ran_out(h: Harness) -> Verdict {
    let club = Club::new(h, 2).await?;
    let first = club.member("ann", BRIEF)?;
    club.join(&first).await?;
    club.silence().await?;
    let second = club.member("ann", LONG)?;
    equal!(club.join(&second).await?.members, 1, "members after a restart");
    equal!(club.roster().await?.members, [second], "members after a restart");
    refused(club.beat(&first).await, ErrorKind::Fenced, "the heartbeat of who had the id before")
}

async fn leaving_after_a_takeover_takes_nobody_out(h: Harness) -> Verdict {
    let club = Club::new(h, 2).await?;
    let first = club.joined("ann").await?;
    let second = club.joined("ann").await?;
    let before = club.roster().await?;
    club.leave(&first).await?;
    equal!(club.roster().await?, before, "the group after its former member left");
    equal!(before.members, vec![second.clone()], "members");
    club.leave(&second).await?;
    equal!(club.roster().await?.members, [], "members after the second left");
    Ok(())
}
