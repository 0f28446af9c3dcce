//! Sets of completion indexes, written as upstream does: `1,3-5,7`. Pure.

use std::fmt;

/// Disjoint, ascending, not touching intervals, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(Vec<(i64, i64)>);

impl Intervals {
    /// Reads `1,3-5`; what is malformed, or not below `completions`, is left out.
    pub fn parse(text: &str, completions: i64) -> Self {
        let mut all = Intervals::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i64>(), last.parse::<i64>()) {
                all.insert_range(first, last.min(completions - 1));
            }
        }
        all
    }

    pub fn insert(&mut self, index: i64) {
        if !self.contains(index) {
            self.insert_range(index, index);
        }
    }

    fn insert_range(&mut self, first: i64, last: i64) {
        if first > last || first < 0 {
            return;
        }
        let start = self.0.partition_point(|interval| interval.1 + 1 < first);
        let end = self.0.partition_point(|interval| interval.0 <= last + 1);
        let merged = self.0[start..end]
            .iter()
            .fold((first, last), |(first, last), interval| {
                (first.min(interval.0), last.max(interval.1))
            });
        self.0.splice(start..end, [merged]);
    }

    pub fn contains(&self, index: i64) -> bool {
        let at = self.0.partition_point(|interval| interval.1 < index);
        self.0.get(at).is_some_and(|interval| interval.0 <= index)
    }

    /// How many indexes there are.
    pub fn total(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// How many indexes both have.
    pub fn common(&self, other: &Intervals) -> i64 {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut total = 0;
        while let (Some(one), Some(two)) = (a.peek(), b.peek()) {
            total += (one.1.min(two.1) - one.0.max(two.0) + 1).max(0);
            if one.1 < two.1 {
                a.next();
            } else {
                b.next();
            }
        }
        total
    }
}

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_join_into_intervals_and_are_written_as_upstream_does() {
        let mut all = Intervals::parse("1,3-5,99", 10);
        assert_eq!(all.to_string(), "1,3-5");
        for index in [7, 2, 8, 2] {
            all.insert(index);
        }
        assert_eq!(all.to_string(), "1-5,7,8");
        assert_eq!(all.total(), 7);
        assert!(all.contains(5) && !all.contains(6) && !all.contains(0));
        assert_eq!(Intervals::parse("x,-1,4-2", 10).total(), 0);
    }

    #[test]
    fn common_indexes_are_counted() {
        let a = Intervals::parse("0-3,6-9", 10);
        assert_eq!(a.common(&Intervals::parse("2-7", 10)), 4);
        assert_eq!(a.common(&Intervals::default()), 0);
    }
}
