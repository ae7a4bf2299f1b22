//! Plots as inline SVG: axes, lines, a title and a description for who cannot see them. No scripts.
//!
//! The drawing is small, so that its letters can be read on a phone, and grows with the page.

use std::fmt::Write;

use super::text::escape;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;

/// Colours and dashes that the style sheet has.
pub const COLOURS: usize = 8;

/// How numbers lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear,
    Log,
    /// From 0 to 100, each nine as wide as the one before.
    Nines,
}

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A logarithmic axis that holds all of `values`, from decade to decade or closer.
    pub fn log(label: &str, values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().filter(|value| *value > 0.0).reduce(f64::min).unwrap_or(1.0);
        let high = values.reduce(f64::max).unwrap_or(10.0).max(low * 1.001);
        let steps: &[f64] = match (high / low).log10() {
            decades if decades < 1.5 => &[1.0, 2.0, 5.0],
            decades if decades < 3.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let all: Vec<f64> =
            (-4..14).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power))).collect();
        // Down to the next tick, unless that leaves much of the plot empty.
        let below = all.iter().copied().rfind(|tick| *tick <= low).unwrap_or(low);
        let above = all.iter().copied().find(|tick| *tick >= high).unwrap_or(high);
        let room = (above / below).log10() * 0.12;
        let low = if (low / below).log10() > room { low * 0.97 } else { below };
        let high = if (above / high).log10() > room { high * 1.03 } else { above };
        let inside = all.into_iter().filter(|tick| (low..=high).contains(tick));
        let ticks = inside.map(|tick| (tick, number(tick))).collect();
        Self { label: label.to_owned(), scale: Scale::Log, low, high, ticks }
    }

    /// A logarithmic axis with exactly these ticks.
    pub fn steps(label: &str, ticks: Vec<(f64, String)>) -> Self {
        let low = ticks.first().map_or(1.0, |tick| tick.0);
        let high = ticks.last().map_or(10.0, |tick| tick.0).max(low * 1.001);
        Self { label: label.to_owned(), scale: Scale::Log, low, high, ticks }
    }

    /// From zero to a round number above `most`.
    pub fn linear(label: &str, most: f64) -> Self {
        let raw = (most / 4.0).max(1e-9);
        let decade = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * decade).find(|step| *step >= raw);
        let step = step.unwrap_or(raw);
        let count = (most / step).ceil().max(1.0);
        let ticks = (0..=count as u32).map(|tick| (f64::from(tick) * step, number(f64::from(tick) * step)));
        Self {
            label: label.to_owned(),
            scale: Scale::Linear,
            low: 0.0,
            high: count * step,
            ticks: ticks.collect(),
        }
    }

    /// Percentiles, as far as `count` operations give any.
    pub fn percentiles(label: &str, count: u64) -> Self {
        // More nines than a number of this kind holds would be the whole.
        let high = 100.0 - 100.0 / (count.clamp(10, 1_000_000_000) as f64);
        let all = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
        let ticks = all.into_iter().filter(|tick| *tick <= high).map(|tick| (tick, format!("{tick}")));
        Self { label: label.to_owned(), scale: Scale::Nines, low: 0.0, high, ticks: ticks.collect() }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let along = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(1e-9).log10(),
            Scale::Nines => -(1.0 - value.min(self.high) / 100.0).log10(),
        };
        let (low, high) = (along(self.low), along(self.high));
        let place = (along(value) - low) / (high - low);
        // Reports that others made may hold anything.
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// A number of a tick without needless zeroes.
fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", trim(value / 1e6)),
        value if value >= 1e4 => format!("{}k", trim(value / 1e3)),
        value => trim(value),
    }
}

fn trim(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From point to point.
    Line,
    /// From point to point, with a mark at each.
    Marks,
    /// Steps over the ground, filled: each point is the right end of its step, and the first one only begins it.
    Steps,
}

/// Points of one colour.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Which colour.
    pub colour: usize,
    /// Left to right.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Its points as far as `edge`.
    pub fn up_to(mut self, edge: f64) -> Self {
        self.points.retain(|point| point.0 <= edge);
        self
    }
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Unique on its page.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// In a sentence, for who cannot see it.
    pub description: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is drawn.
    pub kind: Kind,
    /// All of it.
    pub series: Vec<Series>,
}

impl Plot {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (wide, high) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        (LEFT + self.x.place(x) * wide, TOP + (1.0 - self.y.place(y)) * high)
    }

    /// The drawing.
    pub fn svg(&self) -> String {
        let (id, title, description) = (&self.id, escape(&self.title), escape(&self.description));
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{description}</desc>"
        );
        self.grid(&mut out);
        for series in &self.series {
            self.draw(series, &mut out);
        }
        out.push_str("</svg>");
        out
    }

    fn grid(&self, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (tick, text) in &self.y.ticks {
            let (_, y) = self.at((self.x.low, *tick));
            let _ = write!(out, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let (x, y) = (LEFT - 7.0, y + 4.0);
            let _ =
                write!(out, "<text class=\"tick\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>");
        }
        for (tick, text) in &self.x.ticks {
            let (x, _) = self.at((*tick, self.y.low));
            let _ = write!(out, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>");
            let y = bottom + 16.0;
            let _ = write!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>"
            );
        }
        let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>");
        let (middle, below, label) = ((LEFT + right) / 2.0, HEIGHT - 8.0, escape(&self.x.label));
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{label}</text>"
        );
        let label = escape(&self.y.label);
        let _ = write!(out, "<text class=\"label\" x=\"4\" y=\"13\">{label}</text>");
    }

    fn draw(&self, series: &Series, out: &mut String) {
        let colour = series.colour % COLOURS;
        let places: Vec<(f64, f64)> = series.points.iter().map(|&point| self.at(point)).collect();
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return };
        let ground = HEIGHT - BOTTOM;
        let mut path = String::new();
        match self.kind {
            Kind::Line | Kind::Marks => {
                for (at, (x, y)) in places.iter().enumerate() {
                    let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
                }
            }
            Kind::Steps => {
                let _ = write!(path, "M{:.1} {ground}", first.0);
                for (x, y) in &places[1..] {
                    let _ = write!(path, "V{y:.1}H{x:.1}");
                }
                let _ = write!(path, "V{ground}");
                let _ = write!(out, "<path class=\"area f{colour}\" d=\"{path}H{:.1}Z\"/>", first.0);
            }
        }
        let _ = write!(out, "<path class=\"line s{colour}\" d=\"{path}\"/>");
        if self.kind == Kind::Marks {
            for (x, y) in &places {
                let _ =
                    write!(out, "<circle class=\"dot f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\"/>");
            }
        } else if self.kind == Kind::Line {
            let _ = write!(
                out,
                "<circle class=\"dot f{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.4\"/>",
                last.0, last.1
            );
        }
    }

    /// What colour is what.
    pub fn legend(&self) -> String {
        let mut out = String::from("<ul class=\"legend\">");
        for series in &self.series {
            let colour = series.colour % COLOURS;
            let _ = write!(
                out,
                "<li><svg viewBox=\"0 0 30 10\" width=\"30\" height=\"10\" aria-hidden=\"true\">\
                 <path class=\"line s{colour}\" d=\"M1 5H29\"/></svg>{}</li>",
                escape(&series.name)
            );
        }
        out.push_str("</ul>");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_all_values_have_a_place() {
        assert_eq!(texts(&Axis::log("", [2.2, 45.0].into_iter())), ["2", "5", "10", "20", "50"]);
        // Where the next tick is far, the plot ends at the value.
        assert_eq!(texts(&Axis::log("", [3.0, 45.0].into_iter())), ["5", "10", "20", "50"]);
        let wide = Axis::log("", [0.09, 12_000.0].into_iter());
        assert_eq!(texts(&wide), ["0.1", "1", "10", "100", "1000", "10k"]);
        assert!(wide.place(0.09) > 0.0 && wide.place(12_000.0) < 1.0);
        assert_eq!(texts(&Axis::linear("", 0.9)), ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(texts(&Axis::linear("", 123_000.0)), ["0", "50k", "100k", "150k"]);
        assert_eq!(texts(&Axis::percentiles("", 20_000)), ["0", "50", "90", "99", "99.9", "99.99"]);
    }

    #[test]
    fn values_lie_where_they_belong() {
        let axis = Axis::log("", [1.0, 100.0].into_iter());
        assert_eq!((axis.place(1.0), axis.place(10.0), axis.place(1e9)), (0.0, 0.5, 1.0));
        let axis = Axis::percentiles("", 1000);
        assert!((axis.place(90.0) - 1.0 / 3.0).abs() < 1e-9 && axis.place(100.0) == 1.0);
    }

    #[test]
    fn odd_data_draws_something() {
        let (x, y) = (Axis::log("<x>", std::iter::empty()), Axis::linear("y", 0.0));
        let series = vec![Series { name: "a&b".into(), colour: 99, points: vec![] }];
        let plot = Plot {
            id: "p".into(),
            title: "t".into(),
            description: String::new(),
            x,
            y,
            kind: Kind::Steps,
            series,
        };
        assert!(plot.svg().contains("&lt;x&gt;") && plot.legend().contains("a&amp;b"));
        assert!(!plot.svg().contains("NaN"));
    }
}
