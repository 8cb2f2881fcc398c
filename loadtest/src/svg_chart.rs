//! Shared parts of the SVG charts: readable on light and dark backgrounds, with system fonts only.

/// The style sheet of every chart: background, title, axes and grid.
pub(crate) const STYLE: &str = "\
svg{background:#fff;color:#24292f;font:12px system-ui,sans-serif}
.grid{stroke:currentColor;opacity:.15}.axis{fill:currentColor;opacity:.75}.title{fill:currentColor;font-size:15px;font-weight:600}
.head{fill:currentColor;font-weight:600}.strong{fill:currentColor}.line{fill:none;stroke-width:1.6}
@media(prefers-color-scheme:dark){svg{background:#0d1117;color:#e6edf3}}";

/// Colours that are distinguishable on light and dark backgrounds, in order of use.
pub(crate) const COLOURS: [&str; 7] =
    ["#3b82c4", "#e0863a", "#3fa45b", "#a878c8", "#d9534f", "#2fa7a0", "#b8962e"];

/// The rectangle of a plot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlotArea {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl PlotArea {
    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// The x coordinate of a share of the width.
    pub(crate) fn x(&self, share: f64) -> f64 {
        self.left + share.clamp(0.0, 1.0) * self.width
    }

    /// The y coordinate of a share of the height, from the bottom.
    pub(crate) fn y(&self, share: f64) -> f64 {
        self.bottom() - share.clamp(0.0, 1.0) * self.height
    }

    /// A horizontal grid line with its label at the left.
    pub(crate) fn grid_line(&self, out: &mut String, share: f64, label: &str) {
        let (y, left, right) = (self.y(share), self.left, self.right());
        push_line(
            out,
            &format!("<line class=\"grid\" x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"),
        );
        text(out, "axis", left - 6.0, y + 4.0, "end", label);
    }

    /// A label below the plot.
    pub(crate) fn x_label(&self, out: &mut String, share: f64, label: &str) {
        text(out, "axis", self.x(share), self.bottom() + 18.0, "middle", label);
    }
}

/// The beginning of an SVG document; `</svg>` ends it.
pub(crate) fn begin(width: f64, height: f64, style: &str, title: &str) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\"><style>{style}</style>\n\
         <title>{title}</title>\n"
    )
}

pub(crate) fn text(out: &mut String, class: &str, x: f64, y: f64, anchor: &str, content: &str) {
    let content = escape(content);
    push_line(
        out,
        &format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
        ),
    );
}

pub(crate) fn push_line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

pub(crate) fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, character| {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // XML cannot represent these.
            character if character.is_control() => out.push(' '),
            character => out.push(character),
        }
        out
    })
}

/// The next higher round number, chosen so that a quarter of it is round too.
pub(crate) fn round_up(number: f64) -> f64 {
    if !number.is_finite() || number <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(number.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];
    let fits = steps.into_iter().find(|step| step * power >= number * 0.999_999);
    fits.unwrap_or(10.0) * power
}

/// A number with thousands separators.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut out = if number < -0.5 { "-".to_owned() } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Milliseconds with three significant digits or so.
pub(crate) fn millis(number: f64) -> String {
    match number {
        number if number >= 100.0 => format!("{} ms", grouped(number)),
        number if number >= 10.0 => format!("{number:.1} ms"),
        number => format!("{number:.2} ms"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The names of all elements. Panics unless the elements are nested correctly and all attributes are quoted.
    pub(crate) fn elements(xml: &str) -> Vec<&str> {
        let (mut open, mut all) = (Vec::new(), Vec::new());
        for piece in xml.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("an open tag: {piece}"));
            assert!(!text.contains('>') || open.last() == Some(&"style"), "{text}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
                continue;
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = tag.split([' ', '/']).next().unwrap();
            all.push(name);
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
        all
    }

    #[test]
    fn numbers_are_rounded_up_to_round_numbers() {
        for (number, rounded) in [(3906.0, 4000.0), (4000.0, 4000.0), (0.7, 0.8), (11.0, 12.0), (0.0, 1.0)] {
            assert!((round_up(number) - rounded).abs() < 1e-9, "{number}: {}", round_up(number));
        }
    }

    #[test]
    fn large_numbers_have_commas() {
        let written = [0.0, 999.4, 1000.0, 1_234_567.0, -1500.0].map(grouped);
        assert_eq!(written, ["0", "999", "1,000", "1,234,567", "-1,500"]);
        assert_eq!([0.123, 12.34, 1234.5].map(millis), ["0.12 ms", "12.3 ms", "1,234 ms"]);
    }
}
