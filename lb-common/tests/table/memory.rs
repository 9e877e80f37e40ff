//! What a packet wrote: copies of the table's memory.

use lb_common::abi::WAYS;
use lb_common::atomic::Word;
use lb_common::flow::{ColdWay, Way};

use crate::table::Host;

/// Every word of the table that packets share, for comparisons.
pub(crate) fn words(table: &Host) -> Vec<u64> {
    let mut all = Vec::new();
    let mut push = |way: &Way, cold: &ColdWay| {
        all.extend(
            [
                &way.client,
                &way.virtual_end,
                &way.meta,
                &way.backend_end,
                &cold.syn_us,
            ]
            .map(Word::load),
        );
        let halves = [
            &cold.syn_ack_us,
            &cold.request_us,
            &cold.response_us,
            &cold.client_end,
            &cold.client_start,
            &cold.server_start,
            &cold.service,
            &cold.syn_repeats,
        ];
        all.extend(halves.map(|half| u64::from(half.load())));
    };
    for (bucket, cold) in table.buckets.iter().zip(&table.cold) {
        for index in 0..WAYS {
            push(&bucket.ways[index], &cold.ways[index]);
        }
    }
    for spilled in &table.arena {
        push(&spilled.way, &spilled.cold);
    }
    for live in &table.live {
        all.extend(
            [
                &live.half_opened,
                &live.half_closed,
                &live.opened,
                &live.closed,
                &live.resets,
                &live.syn_timeouts,
                &live.forgiven,
                &live.trial,
            ]
            .map(Word::load),
        );
    }
    all
}
