//! Dead letters that are put back, for example from a file, and purging all letters up to an id.

use millstream_core::{DeadLetter, MessageId, Result};

use super::Grave;
use crate::case::{Verdict, ensure, equal};
use crate::harness::{Harness, foreign, message};
use crate::suite::suite;

suite!("dead_letters":
    what_is_put_back_is_as_it_was,
    what_is_put_back_twice_is_there_once,
    what_is_still_there_is_not_put,
    what_is_purged_up_to_an_id_is_gone,
);

impl Grave {
    async fn put(&mut self, letters: &[DeadLetter], again: bool) -> Result<Vec<Option<MessageId>>> {
        self.h.backend.dead_letters()?.put(&self.tp, &self.group, letters, again).await
    }
}

async fn what_is_put_back_is_as_it_was(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[foreign(), message(1)]).await?;
    let taken = grave.list(2).await?;
    let ids: Vec<_> = taken.iter().map(|letter| letter.id).collect();
    equal!(grave.purge(&ids).await?, 2, "purged");
    let put: Vec<_> = grave.put(&taken, false).await?.into_iter().flatten().collect();
    equal!(put.len(), 2, "letters that were put back");
    for (mut before, after) in taken.into_iter().zip(grave.list(2).await?) {
        ensure!(after.id > before.id && put.contains(&after.id), "{} is put back as {}", before.id, after.id);
        before.id = after.id;
        equal!(format!("{after:?}"), format!("{before:?}"), "a letter that was put back");
    }
    grave.replay_all(2).await?;
    equal!(grave.owner.take(2).await?.len(), 2, "messages that came back");
    Ok(())
}

async fn what_is_put_back_twice_is_there_once(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let taken = grave.list(2).await?;
    let ids: Vec<_> = taken.iter().map(|letter| letter.id).collect();
    equal!(grave.purge(&ids).await?, 2, "purged");
    equal!(grave.put(&taken[..1], false).await?.iter().flatten().count(), 1, "put back");
    let both = grave.put(&taken, false).await?;
    equal!(
        both.iter().map(Option::is_some).collect::<Vec<_>>(),
        [false, true],
        "of which one is put back again"
    );
    grave.replay_all(2).await?;
    equal!(grave.put(&taken, false).await?, [None, None], "put back of what was replayed since");
    equal!(grave.put(&taken[1..], true).await?.iter().flatten().count(), 1, "put back again on purpose");
    grave.list(1).await?;
    Ok(())
}

async fn what_is_still_there_is_not_put(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let letters = grave.list(2).await?;
    equal!(grave.purge(&[letters[1].id]).await?, 1, "purged");
    for again in [false, true] {
        let put = grave.put(&letters[..1], again).await?;
        equal!(put, [None], "put back of what is there");
    }
    equal!(grave.put(&letters, false).await?.iter().flatten().count(), 1, "put back of what is gone");
    grave.list(2).await?;
    Ok(())
}

async fn what_is_purged_up_to_an_id_is_gone(h: Harness) -> Verdict {
    let mut grave = Grave::new(h.clone()).await?;
    let dead_letters = h.backend.dead_letters()?;
    equal!(
        dead_letters.purge_through(&grave.tp, &grave.group, MessageId::MAX).await?,
        0,
        "purged of nothing"
    );
    grave.bury(&[message(0), message(1), message(2)]).await?;
    let ids = grave.ids(3).await?;
    equal!(dead_letters.purge_through(&grave.tp, &grave.group, ids[1]).await?, 2, "purged up to the second");
    equal!(grave.ids(1).await?, ids[2..], "what is left");
    equal!(dead_letters.purge_through(&grave.tp, &grave.group, ids[1]).await?, 0, "purged again");
    equal!(dead_letters.purge_through(&grave.tp, &grave.group, MessageId::MAX).await?, 1, "purged at last");
    grave.list(0).await?;
    Ok(())
}
