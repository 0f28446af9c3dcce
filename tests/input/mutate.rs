//! Damages inputs: the same way in every run, so that a failure can be repeated from its seed.

/// A small generator of numbers (xorshift64*).
pub struct Random(u64);

/// Longest input made by mutation (bytes); long ones are made on purpose (`hostile`).
const LONGEST: usize = 8 * 1024;

const INTERESTING: &[u8] = b"\0\xff\x80\x7f{}[]()\",:\\-0e9E.$&*!|>?<\n\t #='/~";

impl Random {
    /// From a seed; zero is as good as any other.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`; 0 when that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// One of these; none of none.
    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }

    /// An input made of one of the seeds: bytes changed, words put in, parts repeated, moved, taken from another seed.
    pub fn input(&mut self, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
        let mut out = self.one_of(seeds).cloned().unwrap_or_default();
        for _ in 0..=self.below(8) {
            self.damage(&mut out, seeds, words);
            out.truncate(LONGEST);
        }
        out
    }

    fn damage(&mut self, out: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str]) {
        let at = self.below(out.len() + 1);
        let end = (at + self.below(48)).min(out.len());
        match self.below(10) {
            0 if at < out.len() => out[at] = self.next() as u8,
            1 if at < out.len() => out[at] = *self.one_of(INTERESTING).unwrap_or(&0),
            2 if at < out.len() => out[at] ^= 1 << self.below(8),
            3 => {
                out.drain(at..end);
            }
            4 => out.insert(at, *self.one_of(INTERESTING).unwrap_or(&0)),
            5 => {
                let part = out[at..end].to_vec();
                let to = self.below(out.len() + 1);
                for _ in 0..=self.below(4) {
                    out.splice(to..to, part.iter().copied());
                }
            }
            6 | 7 => {
                let word = self.one_of(words).copied().unwrap_or_default();
                let end = if self.below(2) == 0 { at } else { end };
                out.splice(at..end, word.bytes());
            }
            8 => {
                let other = self.one_of(seeds).cloned().unwrap_or_default();
                let from = self.below(other.len());
                let to = (from + self.below(64)).min(other.len());
                out.splice(at..end, other[from..to].iter().copied());
            }
            _ => out.truncate(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_inputs_again_and_another_makes_others() {
        let seeds = [b"{\"a\":1}".to_vec(), b"[]".to_vec()];
        let run = |seed| {
            let mut random = Random::new(seed);
            (0..50)
                .map(|_| random.input(&seeds, &["null"]))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
