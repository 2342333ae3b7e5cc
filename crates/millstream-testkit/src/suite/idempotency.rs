//! The idempotency role: an operation is begun by one caller at a time, and completed once.

use std::time::Duration;

use millstream_core::idempotency::{Begun, MAX_RESULT_LEN, Marker, Operation};
use millstream_core::{ErrorKind, GroupName};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};

suite!("idempotency":
    an_operation_is_begun_by_one,
    of_many_at_once_one_begins,
    the_same_token_begins_again,
    a_completed_operation_returns_its_result,
    a_result_of_the_largest_size_is_kept_and_a_larger_one_refused,
    the_result_of_the_first_completion_stays,
    a_result_leaves_after_its_retention,
    an_abandoned_operation_can_be_begun_at_once,
    a_marker_that_ran_out_goes_to_the_next,
    an_extended_marker_outlives_its_ttl,
    a_marker_that_ran_out_untaken_is_revived_and_completed,
    whoever_was_overtaken_is_fenced_and_harmless,
    a_done_operation_is_neither_extended_nor_abandoned,
    extending_many_answers_each,
    operations_are_independent,
);

async fn operation(h: &Harness, id: &[u8]) -> Result<Operation, Violation> {
    let topic = h.topic(1).await?.name;
    Ok(Operation::new(topic, GroupName::new("group")?, id.to_vec())?)
}

async fn begin(h: &Harness, operation: &Operation, ttl: Duration) -> Result<Begun, Violation> {
    let token = h.unique("token");
    Ok(h.backend.idempotency()?.begin(operation, "ann", &token, ttl).await?)
}

/// Begins an operation that must be free.
async fn started(h: &Harness, operation: &Operation, ttl: Duration) -> Result<Marker, Violation> {
    match begin(h, operation, ttl).await? {
        Begun::Started(marker) => Ok(marker),
        other => Err(Violation::new(format!("a free {operation} was not begun: {other:?}"))),
    }
}

/// Begins an operation as soon as it is free.
async fn eventually_started(h: &Harness, operation: &Operation, ttl: Duration) -> Result<Marker, Violation> {
    let mut deadline = h.wait_for("a marker to run out");
    loop {
        if let Begun::Started(marker) = begin(h, operation, ttl).await? {
            return Ok(marker);
        }
        deadline.pause().await?;
    }
}

async fn an_operation_is_begun_by_one(h: Harness) -> Verdict {
    let operation = operation(&h, b"pay 7").await?;
    let marker = started(&h, &operation, LONG).await?;
    equal!((&marker.operation, marker.ttl, &*marker.holder), (&operation, LONG, "ann"), "the marker");
    let second = h.backend.idempotency()?.begin(&operation, "bob", &h.unique("token"), LONG).await?;
    let Begun::Running { holder, expires_in } = second else {
        return Err(Violation::new(format!("begun twice: {marker:?} and {second:?}")));
    };
    equal!(holder, "ann", "the holder of what runs");
    ensure!(
        expires_in > LONG / 2 && expires_in <= LONG,
        "expires in {expires_in:?}, begun for {LONG:?} just now"
    );
    Ok(())
}

async fn of_many_at_once_one_begins(h: Harness) -> Verdict {
    let operation = operation(&h, b"once").await?;
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let (h, operation) = (h.clone(), operation.clone());
            tokio::spawn(async move { begin(&h, &operation, LONG).await })
        })
        .collect();
    let mut begun = 0;
    for caller in callers {
        let answer = caller.await.map_err(|error| Violation::new(error.to_string()))??;
        begun += usize::from(matches!(answer, Begun::Started(_)));
    }
    equal!(begun, 1, "of 16 callers at once those that began");
    Ok(())
}

async fn the_same_token_begins_again(h: Harness) -> Verdict {
    let (operation, token) = (operation(&h, b"again").await?, h.unique("token"));
    let role = h.backend.idempotency()?;
    let first = role.begin(&operation, "ann", &token, LONG).await?;
    let Begun::Started(marker) = &first else {
        return Err(Violation::new(format!("a free operation was not begun: {first:?}")));
    };
    for _ in 0..3 {
        equal!(role.begin(&operation, "ann", &token, LONG).await?, first, "the answer to the same begin");
    }
    Ok(role.complete(marker, b"", LONG).await?)
}

async fn a_completed_operation_returns_its_result(h: Harness) -> Verdict {
    let operation = operation(&h, b"\0}{ \xff").await?;
    let marker = started(&h, &operation, LONG).await?;
    let role = h.backend.idempotency()?;
    for result in [&b""[..], b"d r \0 \xff\r\n"] {
        let id = [operation.id(), result].concat();
        let other =
            Operation::new(operation.topic().clone(), operation.group().clone(), [&id[..], b"!"].concat())?;
        let marker = started(&h, &other, LONG).await?;
        role.complete(&marker, result, LONG).await?;
        for _ in 0..2 {
            equal!(
                begin(&h, &other, LONG).await?,
                Begun::Done(result.to_vec().into()),
                "a begin of what is done"
            );
        }
        let own = role.begin(&other, "ann", &marker.token, LONG).await?;
        equal!(own, Begun::Done(result.to_vec().into()), "a begin with the token of the completion");
    }
    Ok(role.abandon(&marker).await?)
}

async fn a_result_of_the_largest_size_is_kept_and_a_larger_one_refused(h: Harness) -> Verdict {
    let operation = operation(&h, &[b'x'; 256]).await?;
    let marker = started(&h, &operation, LONG).await?;
    let (role, large) = (h.backend.idempotency()?, vec![7; MAX_RESULT_LEN + 1]);
    refused(
        role.complete(&marker, &large, LONG).await,
        ErrorKind::TooLarge,
        "completing with a larger result",
    )?;
    let now = begin(&h, &operation, LONG).await?;
    ensure!(matches!(now, Begun::Running { .. }), "after a refused completion: {now:?}");
    role.complete(&marker, &large[1..], LONG).await?;
    match begin(&h, &operation, LONG).await? {
        Begun::Done(result) if result[..] == large[1..] => Ok(()),
        Begun::Done(result) => Err(Violation::new(format!("{} bytes of {MAX_RESULT_LEN}", result.len()))),
        other => Err(Violation::new(format!("it is completed: {other:?}"))),
    }
}

async fn the_result_of_the_first_completion_stays(h: Harness) -> Verdict {
    let operation = operation(&h, b"twice").await?;
    let marker = started(&h, &operation, LONG).await?;
    let role = h.backend.idempotency()?;
    role.complete(&marker, b"first", LONG).await?;
    role.complete(&marker, b"second", LONG).await?;
    equal!(begin(&h, &operation, LONG).await?, Begun::Done("first".into()), "after two completions");
    Ok(())
}

async fn a_result_leaves_after_its_retention(h: Harness) -> Verdict {
    let operation = operation(&h, b"leaves").await?;
    let marker = started(&h, &operation, LONG).await?;
    h.backend.idempotency()?.complete(&marker, b"done", BRIEF).await?;
    let begun = h.now().await?;
    eventually_started(&h, &operation, LONG).await?;
    let stayed = h.now().await?.saturating_duration_since(begun);
    // The marker was stored before the first reading of the clock, which counts in whole milliseconds.
    ensure!(stayed + BRIEF / 2 >= BRIEF, "kept for {stayed:?} instead of {BRIEF:?}");
    Ok(())
}

async fn an_abandoned_operation_can_be_begun_at_once(h: Harness) -> Verdict {
    let operation = operation(&h, b"abandoned").await?;
    let role = h.backend.idempotency()?;
    for _ in 0..3 {
        let marker = started(&h, &operation, LONG).await?;
        role.abandon(&marker).await?;
        // The reply may have been lost.
        role.abandon(&marker).await?;
    }
    Ok(())
}

async fn a_marker_that_ran_out_goes_to_the_next(h: Harness) -> Verdict {
    let operation = operation(&h, b"ran out").await?;
    let first = started(&h, &operation, BRIEF).await?;
    let second = eventually_started(&h, &operation, LONG).await?;
    ensure!(first.token != second.token, "two begins have one token");
    Ok(())
}

async fn an_extended_marker_outlives_its_ttl(h: Harness) -> Verdict {
    let ttl = Duration::from_millis(400);
    let operation = operation(&h, b"long").await?;
    let marker = started(&h, &operation, ttl).await?;
    let until = h.now().await?.saturating_add(ttl + BRIEF);
    while h.now().await? < until {
        for extended in h.backend.idempotency()?.extend(std::slice::from_ref(&marker)).await {
            extended?;
        }
        tokio::time::sleep(ttl / 40).await;
    }
    let now = begin(&h, &operation, LONG).await?;
    ensure!(matches!(now, Begun::Running { .. }), "it was extended all the time, and is {now:?}");
    Ok(())
}

async fn a_marker_that_ran_out_untaken_is_revived_and_completed(h: Harness) -> Verdict {
    let operation = operation(&h, b"revived").await?;
    let role = h.backend.idempotency()?;
    let mut marker = started(&h, &operation, BRIEF).await?;
    h.reaches(h.now().await?.saturating_add(BRIEF + Duration::from_millis(2))).await?;
    marker.ttl = LONG;
    for extended in role.extend(std::slice::from_ref(&marker)).await {
        extended?;
    }
    let now = begin(&h, &operation, LONG).await?;
    ensure!(matches!(now, Begun::Running { .. }), "it was revived, and is {now:?}");
    role.abandon(&marker).await?;
    let marker = started(&h, &operation, BRIEF).await?;
    h.reaches(h.now().await?.saturating_add(BRIEF + Duration::from_millis(2))).await?;
    role.complete(&marker, b"late", LONG).await?;
    equal!(begin(&h, &operation, LONG).await?, Begun::Done("late".into()), "what was completed late");
    Ok(())
}

async fn whoever_was_overtaken_is_fenced_and_harmless(h: Harness) -> Verdict {
    let operation = operation(&h, b"overtaken").await?;
    let role = h.backend.idempotency()?;
    let old = started(&h, &operation, BRIEF).await?;
    let new = eventually_started(&h, &operation, LONG).await?;
    for extended in role.extend(std::slice::from_ref(&old)).await {
        refused(extended, ErrorKind::Fenced, "extending a marker that another caller has taken over")?;
    }
    refused(
        role.complete(&old, b"old", LONG).await,
        ErrorKind::Fenced,
        "completing what another caller runs",
    )?;
    refused(role.abandon(&old).await, ErrorKind::Fenced, "abandoning what another caller runs")?;
    let now = begin(&h, &operation, LONG).await?;
    ensure!(matches!(now, Begun::Running { .. }), "after the fenced calls: {now:?}");
    role.complete(&new, b"new", LONG).await?;
    refused(
        role.complete(&old, b"old", LONG).await,
        ErrorKind::Fenced,
        "completing what another caller has done",
    )?;
    equal!(begin(&h, &operation, LONG).await?, Begun::Done("new".into()), "the result");
    Ok(())
}

async fn a_done_operation_is_neither_extended_nor_abandoned(h: Harness) -> Verdict {
    let operation = operation(&h, b"done").await?;
    let role = h.backend.idempotency()?;
    let marker = started(&h, &operation, LONG).await?;
    role.complete(&marker, b"result", LONG).await?;
    for extended in role.extend(std::slice::from_ref(&marker)).await {
        refused(extended, ErrorKind::Fenced, "extending what is done")?;
    }
    refused(role.abandon(&marker).await, ErrorKind::Fenced, "abandoning what is done")?;
    equal!(begin(&h, &operation, LONG).await?, Begun::Done("result".into()), "the result");
    Ok(())
}

async fn extending_many_answers_each(h: Harness) -> Verdict {
    let role = h.backend.idempotency()?;
    let mut markers = Vec::new();
    for id in 0..7_u8 {
        markers.push(started(&h, &operation(&h, &[id]).await?, LONG).await?);
    }
    let done = [&markers[1], &markers[4]];
    for marker in done {
        role.complete(marker, b"", LONG).await?;
    }
    let answers: Vec<_> =
        role.extend(&markers).await.into_iter().map(|it| it.map_err(|error| error.kind())).collect();
    let expected: Vec<_> =
        (0..7).map(|at| if [1, 4].contains(&at) { Err(ErrorKind::Fenced) } else { Ok(()) }).collect();
    equal!(answers, expected, "the answers to seven extensions, of which the second and fifth are done");
    equal!(role.extend(&[]).await.len(), 0, "answers to no extension");
    Ok(())
}

async fn operations_are_independent(h: Harness) -> Verdict {
    let (here, there) = (h.topic(1).await?.name, h.topic(1).await?.name);
    let groups = [GroupName::new("group")?, GroupName::new("group.x")?];
    let ids: [&[u8]; 6] = [b"x", b"%78", b"x:y", b"x%3Ay", b".x:x", b"\xff"];
    for topic in [here, there] {
        for group in &groups {
            for id in ids {
                let operation = Operation::new(topic.clone(), group.clone(), id.to_vec())?;
                started(&h, &operation, LONG).await?;
            }
        }
    }
    Ok(())
}
