//! Owns: resource quantities (k8s.io/apimachinery/pkg/api/resource.Quantity): exact values in billionths, and the
//! canonical text. Knows nothing of which resource a quantity counts.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

const NANO: i128 = 1_000_000_000;
/// Largest magnitude held, in billionths. Upstream caps at 2^63-1 once a value leaves its fast path; 10^29 units
/// (the most an `i128` of billionths can hold, rounded down) covers that with room for sums.
const MAX: i128 = 10i128.pow(38);

/// Which family of suffixes a quantity is written with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
    DecimalSi,
}

/// An exact number with the family of suffixes it prefers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Why a text is not a quantity; the texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    /// Zero, written `0`.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::DecimalSi,
    };

    /// A whole number.
    pub fn from_units(units: i64, format: Format) -> Self {
        Self {
            nanos: i128::from(units) * NANO,
            format,
        }
    }

    /// A number of thousandths, as CPU is counted.
    pub fn from_millis(millis: i64) -> Self {
        Self {
            nanos: i128::from(millis) * (NANO / 1000),
            format: Format::DecimalSi,
        }
    }

    /// A number of bytes, written with binary suffixes.
    pub fn from_bytes(bytes: i64) -> Self {
        Self::from_units(bytes, Format::BinarySi)
    }

    /// The value in whole units, rounded up (away from zero), as `Quantity.Value`.
    pub fn value(&self) -> i64 {
        clamp(div_away(self.nanos, NANO))
    }

    /// The value in thousandths, rounded up, as `Quantity.MilliValue`.
    pub fn milli_value(&self) -> i64 {
        clamp(div_away(self.nanos, NANO / 1000))
    }

    /// The value as a floating point number.
    pub fn as_f64(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.nanos.signum() as i32
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Whether it has no fraction of a unit.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// The family of suffixes.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Adds; a zero takes the other's suffixes.
    pub fn add(&mut self, other: &Self) {
        if self.nanos == 0 {
            self.format = other.format;
        }
        self.nanos = self.nanos.saturating_add(other.nanos).clamp(-MAX, MAX);
    }

    /// Subtracts; a zero takes the other's suffixes.
    pub fn sub(&mut self, other: &Self) {
        if self.nanos == 0 {
            self.format = other.format;
        }
        self.nanos = self.nanos.saturating_sub(other.nanos).clamp(-MAX, MAX);
    }

    /// The value with its sign turned.
    pub fn neg(&self) -> Self {
        Self {
            nanos: -self.nanos,
            format: self.format,
        }
    }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn div_away(value: i128, by: i128) -> i128 {
    value / by + (value % by).signum()
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
            None => return Err(ParseError::Format),
        };
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let whole_end = digits(unsigned);
        let (whole, mut rest) = unsigned.split_at(whole_end);
        let mut fraction = "";
        if let Some(after) = rest.strip_prefix('.') {
            let end = digits(after);
            (fraction, rest) = after.split_at(end);
        }
        let empty = whole.is_empty() && fraction.is_empty();
        if empty || !is_suffix_shaped(rest) {
            return Err(ParseError::Format);
        }
        let (format, suffix) = suffix(rest).ok_or(ParseError::Suffix)?;
        let nanos = scale(whole, fraction, suffix);
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
            format,
        })
    }
}

/// Whether the last group of the regular expression matches. What does and is no suffix gets another error.
fn is_suffix_shaped(text: &str) -> bool {
    let rest = text.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    rest.bytes().all(|b| b.is_ascii_digit())
}

enum Suffix {
    Ten(i32),
    Two(u32),
}

fn suffix(text: &str) -> Option<(Format, Suffix)> {
    let decimal = |power| Some((Format::DecimalSi, Suffix::Ten(power)));
    let binary = |power| Some((Format::BinarySi, Suffix::Two(power)));
    match text {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        exponent => {
            let number = exponent.strip_prefix(['e', 'E'])?;
            let number = number.strip_prefix('+').unwrap_or(number);
            let power = number.parse::<i32>().ok()?;
            Some((Format::DecimalExponent, Suffix::Ten(power)))
        }
    }
}

/// `whole.fraction` times the suffix in billionths, rounded up in magnitude and capped.
fn scale(whole: &str, fraction: &str, suffix: Suffix) -> i128 {
    let (power, factor) = match suffix {
        Suffix::Ten(power) => (power.clamp(-1000, 1000), 1),
        Suffix::Two(power) => (0, 1i128 << power),
    };
    // Digits left of position `point` count whole billionths; what is right of it only rounds up, unless a binary
    // factor may still lift it: 19 more digits decide 2^60 exactly enough to round up.
    let extra = if factor > 1 { 19 } else { 0 };
    let point = whole.len() as i64 + i64::from(power) + 9 + extra;
    let mut value: i128 = 0;
    let mut dropped = false;
    let mut position = 0i64;
    for digit in whole
        .bytes()
        .chain(fraction.bytes())
        .map(|b| i128::from(b - b'0'))
    {
        if position < point {
            value = value.saturating_mul(10).saturating_add(digit);
        } else {
            dropped |= digit != 0;
        }
        position += 1;
    }
    while position < point && value != 0 && value < i128::MAX / 10 {
        value *= 10;
        position += 1;
    }
    if position < point && value != 0 {
        return MAX;
    }
    let wide = 10i128.pow(extra as u32);
    let (high, low) = (value / wide, value % wide);
    let lifted = match low.checked_mul(factor) {
        Some(low) => high
            .saturating_mul(factor)
            .saturating_add(low / wide + i128::from(low % wide != 0)),
        None => high.saturating_mul(factor),
    };
    lifted.saturating_add(i128::from(dropped)).min(MAX)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let (sign, magnitude) = if self.nanos < 0 {
            ("-", -self.nanos)
        } else {
            ("", self.nanos)
        };
        if self.format == Format::BinarySi && magnitude >= 1024 * NANO && magnitude % NANO == 0 {
            const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
            let (mut value, mut step) = (magnitude / NANO, 0);
            while value % 1024 == 0 && step < SUFFIXES.len() - 1 {
                value /= 1024;
                step += 1;
            }
            return write!(f, "{sign}{value}{}", SUFFIXES[step]);
        }
        let (mut value, mut power) = (magnitude, -9);
        while value % 1000 == 0 && power < 18 {
            value /= 1000;
            power += 3;
        }
        if self.format == Format::DecimalExponent {
            return if power == 0 {
                write!(f, "{sign}{value}")
            } else {
                write!(f, "{sign}{value}e{power}")
            };
        }
        const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        write!(f, "{sign}{value}{}", SUFFIXES[((power + 9) / 3) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, canonical: &str) {
        let quantity: Quantity = text.parse().expect("parses");
        assert_eq!(quantity.to_string(), canonical, "{text}");
        let again: Quantity = canonical.parse().expect("canonical parses");
        assert_eq!(again, quantity);
    }

    #[test]
    fn texts_become_canonical() {
        for (text, canonical) in [
            ("0", "0"),
            ("0.0Ki", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1", "1"),
            ("1500m", "1500m"),
            ("1024Mi", "1Gi"),
            ("1Gi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000k", "1M"),
            ("1e3", "1e3"),
            ("1E6", "1e6"),
            ("100e-3", "100e-3"),
            ("12", "12"),
            ("512", "512"),
            ("0.1Ki", "102400m"),
            ("-1.5", "-1500m"),
            ("+3", "3"),
            (".5", "500m"),
            ("5.", "5"),
            ("1Ki", "1Ki"),
            ("1023", "1023"),
            ("9E", "9E"),
            ("0.0000000001", "1n"),
            ("128974848", "128974848"),
            ("129e6", "129e6"),
            ("129M", "129M"),
            ("123Mi", "123Mi"),
            ("10000000000", "10G"),
            ("1Ei", "1Ei"),
            ("500Ki", "500Ki"),
        ] {
            check(text, canonical);
        }
    }

    #[test]
    fn values_round_up() {
        let parse = |text: &str| text.parse::<Quantity>().expect("parses");
        assert_eq!(parse("1500m").value(), 2);
        assert_eq!(parse("-1500m").value(), -2);
        assert_eq!(parse("1u").milli_value(), 1);
        assert_eq!(parse("2").milli_value(), 2000);
        assert_eq!(parse("1e30").value(), i64::MAX);
        assert!(parse("1Gi") > parse("1G"));
        let mut sum = Quantity::ZERO;
        sum.add(&parse("1Gi"));
        sum.add(&parse("1Gi"));
        assert_eq!(sum.to_string(), "2Gi");
        sum.sub(&parse("3Gi"));
        assert_eq!(sum.to_string(), "-1Gi");
    }

    #[test]
    fn a_text_of_another_shape_and_an_unknown_suffix_get_their_own_errors() {
        for text in [
            "abc", "64MB", "1,5", "100mb", "Ki", "1.1.M", "1+1.0M", "0.1am",
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(ParseError::Format), "{text}");
        }
        for text in ["1i", "1mi", "1ki", "1e", "-3.01e-", "1KM", "1Mi5"] {
            assert_eq!(text.parse::<Quantity>(), Err(ParseError::Suffix), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "-",
            "a",
            "1x",
            "1 Gi",
            "1Gi ",
            "1ki",
            "1.2.3",
            "1e",
            "--1",
            ".",
            "0x10",
            "1e1000000000000",
            "١",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }
}
