//! Which producer makes which ids: every partition is fed by one producer where there are enough
//! partitions, so that ids rise within a partition and the order can be checked at the other end.

/// The ids of one producer, in the order it makes them.
#[derive(Debug, Clone)]
pub struct Lane {
    own: Vec<u64>,
    stride: u64,
    next: u64,
    partitions: u64,
}

impl Lane {
    /// The lane of one of `producers` that feed `partitions`.
    pub fn new(producer: u64, producers: u64, partitions: u64) -> Self {
        let (own, stride) = if producers <= partitions {
            let own = (producer..partitions).step_by(usize::try_from(producers).unwrap_or(1));
            (own.collect(), partitions)
        } else {
            (vec![producer], producers)
        };
        Self {
            own,
            stride,
            next: 0,
            partitions,
        }
    }

    /// Whether ids rise within each partition when so many producers feed it.
    pub fn keeps_order(producers: u64, partitions: u64) -> bool {
        producers <= partitions
    }

    /// The next id below `limit` and its partition.
    pub fn next_below(&mut self, limit: u64) -> Option<(u64, u32)> {
        let width = self.own.len() as u64;
        loop {
            let offset = self.own[usize::try_from(self.next % width).unwrap_or(0)];
            let id = self.next / width * self.stride + offset;
            if self.next / width * self.stride >= limit {
                return None;
            }
            self.next += 1;
            if id < limit {
                return Some((id, u32::try_from(id % self.partitions).unwrap_or(0)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lanes_together_make_every_id_once_and_each_partition_is_in_order() {
        for (producers, partitions, limit) in [(8, 16, 1003), (1, 16, 50), (8, 1, 77), (3, 4, 10)] {
            let mut seen = vec![0; usize::try_from(limit).unwrap()];
            for producer in 0..producers {
                let mut lane = Lane::new(producer, producers, partitions);
                let mut last = vec![-1_i64; usize::try_from(partitions).unwrap()];
                while let Some((id, partition)) = lane.next_below(limit) {
                    assert_eq!(id % partitions, u64::from(partition));
                    assert!(last[partition as usize] < i64::try_from(id).unwrap());
                    last[partition as usize] = i64::try_from(id).unwrap();
                    seen[usize::try_from(id).unwrap()] += 1;
                }
            }
            assert!(
                seen.iter().all(|count| *count == 1),
                "{producers} {partitions}"
            );
        }
    }
}
