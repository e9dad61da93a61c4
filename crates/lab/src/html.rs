//! Reports as one self-contained page: effects next to the patches' own, distributions, ledgers and one bio's path.

use std::fmt::Write as _;

use postread_ledger::{Part, Totals};

use crate::arm::ArmReport;
use crate::ledger_pass::OneBio;
use crate::measured::Measured;
use crate::verdict::Verdict;
use crate::{app_start, factors, kernel, tar};

/// A page in the making.
#[derive(Debug, Default)]
pub struct Page {
    body: String,
}

const COLOURS: [&str; 14] = [
    "#8c510a", "#01665e", "#35978f", "#80cdc1", "#dfc27d", "#f6e8c3", "#bf812d", "#762a83", "#9970ab", "#c2a5cf",
    "#e7d4e8", "#5aae61", "#4393c3", "#d6604d",
];
const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
svg{width:100%;height:auto;margin:.5em 0 1.5em}svg text{font:12px system-ui,sans-serif;fill:#222}\
table{border-collapse:collapse}td,th{padding:.15em .8em .15em 0;text-align:left}pre{overflow-x:auto;font-size:12px}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// What a patch published for a question, in percent.
fn band(question: &str) -> Option<(f64, f64)> {
    match question {
        q if q.starts_with("workers' scheduler latency") => Some((-96.6, -96.6)),
        q if q.contains("instructions off") && q.ends_with("throughput") => Some((25.0, 35.0)),
        q if q.starts_with("AES-256-XTS, ") && q.ends_with("throughput") => Some((-2.0, 2.0)),
        q if q.starts_with("xts-speck128") && q.ends_with("throughput") => Some((10.0, 10.0)),
        _ => None,
    }
}

impl Page {
    /// An empty page.
    pub fn new() -> Page {
        Page::default()
    }

    /// The whole page.
    pub fn finish(&self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <title>postread lab</title><style>{STYLE}</style></head><body><h1>postread lab</h1>\n{}</body></html>\n",
            self.body
        )
    }

    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    fn text(&mut self, text: &str) {
        let _ =
            writeln!(self.body, "<details><summary>The report as text</summary><pre>{}</pre></details>", escape(text));
    }

    /// The answers as a table and a forest plot; a grey band is what a patch published.
    fn verdicts(&mut self, verdicts: &[Verdict]) {
        self.body
            .push_str("<table><tr><th>question</th><th>answer</th><th>effect, interval</th><th>A/A noise</th></tr>\n");
        for verdict in verdicts {
            let effect = verdict.effect.map_or_else(String::new, |effect| effect.to_string());
            let noise = verdict.noise_floor_percent.map_or_else(String::new, |noise| format!("{noise:.1} %"));
            let cells =
                [&verdict.question, &verdict.answer, &effect, &noise].map(|cell| format!("<td>{}</td>", escape(cell)));
            let _ = writeln!(self.body, "<tr class=\"verdict\">{}</tr>", cells.concat());
        }
        self.body.push_str("</table>\n");
        let effects: Vec<_> =
            verdicts.iter().filter_map(|v| Some((&v.question, v.effect?, v.noise_floor_percent))).collect();
        if effects.is_empty() {
            return;
        }
        let ends = effects.iter().flat_map(|(_, e, _)| [e.low_percent.abs(), e.high_percent.abs()]);
        let most = ends.fold(5.0, f64::max).min(120.0);
        let x = |percent: f64| 420.0 + (percent.clamp(-most, most) / most + 1.0) / 2.0 * 520.0;
        let height = effects.len() * 24 + 40;
        let _ = writeln!(
            self.body,
            "<svg class=\"forest\" viewBox=\"0 0 960 {height}\" role=\"img\" aria-label=\"effects with intervals\">"
        );
        for (row, (question, effect, noise)) in effects.iter().enumerate() {
            let y = row as f64 * 24.0 + 16.0;
            if let Some((low, high)) = band(question) {
                let width = (x(high) - x(low)).max(4.0);
                let _ = writeln!(
                    self.body,
                    "<rect class=\"band\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"20\" fill=\"#ccc\"/>",
                    x(low) - if low == high { 2.0 } else { 0.0 },
                    y - 10.0
                );
            }
            if let Some(noise) = noise {
                let (low, high) = (x(-noise), x(*noise));
                let _ = writeln!(
                    self.body,
                    "<rect x=\"{low:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"3\" fill=\"#e0a030\"/>",
                    y + 6.0,
                    high - low
                );
            }
            let (low, high, at) = (x(effect.low_percent), x(effect.high_percent), x(effect.percent));
            let _ = writeln!(
                self.body,
                "<g class=\"effect\"><text x=\"410\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
                 <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#1f4e79\" stroke-width=\"2\"/>\
                 <circle cx=\"{at:.1}\" cy=\"{y}\" r=\"4\" fill=\"#1f4e79\"/></g>",
                y + 4.0,
                escape(question)
            );
        }
        let bottom = height - 22;
        let _ = writeln!(
            self.body,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{bottom}\" stroke=\"#888\"/><text x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\">0</text>\
             <text x=\"{2:.1}\" y=\"{1}\">-{most:.0} %</text><text x=\"{3:.1}\" y=\"{1}\" text-anchor=\"end\">+{most:.0} %</text></svg>\n\
             <p>Grey: what the patch published. Orange: what identical arms differ by here.</p>",
            x(0.0),
            height - 6,
            x(-most),
            x(most),
        );
    }

    /// Cumulative distributions of the rounds' values.
    fn cdfs(&mut self, title: &str, unit: &str, series: &[(String, Vec<f64>)]) {
        let values = || series.iter().flat_map(|(_, values)| values.iter().copied());
        let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
        if series.is_empty() || low >= high {
            return;
        }
        let _ = writeln!(
            self.body,
            "<h3>{}</h3><svg class=\"cdf\" viewBox=\"0 0 960 300\" role=\"img\" aria-label=\"distributions\">",
            escape(title)
        );
        let x = |value: f64| 40.0 + (value - low) / (high - low) * 600.0;
        for (at, (name, values)) in series.iter().enumerate() {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let mut points = String::new();
            for (n, value) in sorted.iter().enumerate() {
                let share = |n: usize| 260.0 - n as f64 / sorted.len() as f64 * 240.0;
                let _ = write!(points, "{:.1},{:.1} {0:.1},{:.1} ", x(*value), share(n), share(n + 1));
            }
            let colour = COLOURS[at % COLOURS.len()];
            let y = 20 + at * 18;
            let _ = writeln!(
                self.body,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <rect x=\"660\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"678\" y=\"{y}\">{}</text>",
                y - 10,
                escape(name)
            );
        }
        let _ = writeln!(
            self.body,
            "<line x1=\"40\" x2=\"640\" y1=\"260\" y2=\"260\" stroke=\"#888\"/><text x=\"40\" y=\"280\">{low:.1}</text>\
             <text x=\"640\" y=\"280\" text-anchor=\"end\">{high:.1} {}</text><text x=\"4\" y=\"24\">all</text></svg>",
            escape(unit)
        );
    }

    /// Ledgers as stacked bars.
    fn bars(&mut self, title: &str, ledgers: &[(String, Vec<(&'static str, f64)>)]) {
        let most = ledgers.iter().map(|(_, parts)| parts.iter().map(|(_, ms)| ms).sum::<f64>()).fold(0.0, f64::max);
        if most <= 0.0 {
            return;
        }
        let labels: Vec<&str> = ledgers[0].1.iter().map(|(label, _)| *label).collect();
        let shown: Vec<usize> = (0..labels.len())
            .filter(|at| ledgers.iter().any(|(_, parts)| parts.get(*at).is_some_and(|(_, ms)| *ms > most / 500.0)))
            .collect();
        let rows = ledgers.len();
        let height = rows * 30 + shown.len().div_ceil(3) * 18 + 20;
        let _ = writeln!(
            self.body,
            "<h3>{}</h3><svg class=\"ledger\" viewBox=\"0 0 960 {height}\" role=\"img\" aria-label=\"what items waited for\">",
            escape(title)
        );
        for (row, (name, parts)) in ledgers.iter().enumerate() {
            let y = row * 30 + 4;
            let mut x = 260.0;
            let _ = writeln!(
                self.body,
                "<g class=\"bar\"><text x=\"250\" y=\"{}\" text-anchor=\"end\">{}</text>",
                y + 15,
                escape(name)
            );
            for at in &shown {
                let Some((label, ms)) = parts.get(*at) else { continue };
                let width = ms / most * 620.0;
                let _ = writeln!(
                    self.body,
                    "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"22\" fill=\"{}\"><title>{}: {ms:.1} ms</title></rect>",
                    COLOURS[at % COLOURS.len()],
                    escape(label)
                );
                x += width;
            }
            let total: f64 = parts.iter().map(|(_, ms)| ms).sum();
            let _ = writeln!(self.body, "<text x=\"{:.1}\" y=\"{}\">{total:.0} ms</text></g>", x + 6.0, y + 15);
        }
        for (n, at) in shown.iter().enumerate() {
            let (x, y) = (n % 3 * 310 + 10, rows * 30 + n / 3 * 18 + 16);
            let _ = writeln!(
                self.body,
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>",
                y - 10,
                COLOURS[at % COLOURS.len()],
                x + 18,
                y,
                escape(labels[*at])
            );
        }
        self.body.push_str("</svg>\n");
    }

    /// The way of one bio in each arm.
    fn timelines(&mut self, bios: &[(String, OneBio)]) {
        let most = bios.iter().map(|(_, bio)| bio.delivered_ns).max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let height = bios.len() * 30 + 40;
        let _ = writeln!(
            self.body,
            "<h3>One demand read, the median one of each arm</h3><svg class=\"timeline\" viewBox=\"0 0 960 {height}\" role=\"img\" aria-label=\"time line of one bio\">"
        );
        let stations =
            ["in the source's queue", "read", "waits for hash blocks", "queued", "steps run", "reader wakes"];
        for (row, (name, bio)) in bios.iter().enumerate() {
            let y = row * 30 + 4;
            let _ = writeln!(
                self.body,
                "<g class=\"bio\"><text x=\"250\" y=\"{}\" text-anchor=\"end\">{}</text>",
                y + 15,
                escape(name)
            );
            let ends =
                [bio.read_begun_ns, bio.arrived_ns, bio.ready_ns, bio.started_ns, bio.ended_ns, bio.delivered_ns];
            let mut from = 0;
            for (at, end) in ends.into_iter().enumerate() {
                let end = end.max(from);
                let x = |ns: u64| 260.0 + ns as f64 / most as f64 * 600.0;
                let _ = writeln!(
                    self.body,
                    "<rect x=\"{:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"22\" fill=\"{}\"><title>{}: {:.1} us</title></rect>",
                    x(from),
                    x(end) - x(from),
                    COLOURS[at * 2],
                    stations[at],
                    (end - from) as f64 / 1000.0
                );
                from = end;
            }
            let _ = writeln!(
                self.body,
                "<text x=\"{:.1}\" y=\"{}\">{:.0} us</text></g>",
                266.0 + from as f64 / most as f64 * 600.0,
                y + 15,
                from as f64 / 1000.0
            );
        }
        for (at, station) in stations.iter().enumerate() {
            let (x, y) = (10 + at * 158, height - 14);
            let _ = writeln!(
                self.body,
                "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{y}\">{station}</text>",
                y - 10,
                COLOURS[at * 2],
                x + 18
            );
        }
        self.body.push_str("</svg>\n");
    }

    fn arms(&mut self, title: &str, unit: &str, arms: &[ArmReport<Measured>]) {
        let measured = || arms.iter().filter_map(|arm| Some((arm.name.clone(), arm.measured.as_ref()?)));
        let series: Vec<_> = measured().map(|(name, measured)| (name, measured.rounds.clone())).collect();
        self.cdfs(title, unit, &series);
        let with_ledger = || measured().filter_map(|(name, measured)| Some((name, measured.ledger.as_ref()?)));
        let traced: Vec<_> =
            with_ledger().filter_map(|(name, ledger)| Some((name, parts(ledger.traced.as_ref()?)))).collect();
        let ms = |ns: u64| ns as f64 / 1e6;
        let ledgers = if traced.is_empty() {
            let stamped = with_ledger().map(|(name, ledger)| {
                let found = &ledger.stamped;
                let run_queue = found.run_delay_ns.min(found.wake_to_start_ns);
                let parts = vec![
                    ("P1 behind another item", ms(found.behind_item_ns)),
                    ("P5 in run queues, at most", ms(run_queue)),
                    ("P2 to P6 otherwise", ms(found.wake_to_start_ns - run_queue)),
                ];
                (name, parts)
            });
            stamped.collect()
        } else {
            traced
        };
        self.bars("What items waited for", &ledgers);
        let bios: Vec<_> = with_ledger().filter_map(|(name, ledger)| Some((name, ledger.one_bio?))).collect();
        self.timelines(&bios);
    }

    /// Adds `lab app-start`.
    pub fn app_start(&mut self, report: &app_start::Report) {
        self.heading("app-start: the fs-verity patch's experiment");
        self.verdicts(&report.verdicts);
        self.arms("Start-up, mean over apps, a value for each round", "ms", &report.arms);
        self.text(&report.to_text());
    }

    /// Adds `lab tar`.
    pub fn tar(&mut self, report: &tar::Report) {
        self.heading("tar: the fscrypt patch's experiment");
        self.verdicts(&report.verdicts);
        for group in &report.groups {
            self.arms(&format!("{}: throughput", group.title()), "MB/s", &group.arms);
        }
        self.text(&report.to_text());
    }

    /// Adds `lab factors`.
    pub fn factors(&mut self, report: &factors::Report) {
        self.heading("factors: one at a time around two anchors");
        self.verdicts(&report.verdicts);
        self.text(&report.to_text());
    }

    /// Adds `lab kernel`.
    pub fn kernel(&mut self, report: &kernel::Report) {
        self.heading("kernel: the patches on a real kernel");
        let _ = writeln!(self.body, "<pre>{}</pre>", escape(&report.conclusion()));
        self.verdicts(&report.verdicts);
        for group in &report.groups {
            let title = group.title();
            let series: Vec<_> = group.arms.iter().map(|arm| (arm.name.clone(), arm.rounds_ms.clone())).collect();
            self.cdfs(&format!("{title}: time"), "ms", &series);
            let ledgers: Vec<_> = group.arms.iter().map(|arm| (arm.name.clone(), parts(&arm.ledger))).collect();
            self.bars(&format!("{title}: what items waited for"), &ledgers);
        }
        self.text(&report.to_text());
    }
}

fn parts(totals: &Totals) -> Vec<(&'static str, f64)> {
    Part::ALL.into_iter().map(|part| (part.label(), totals.parts.get(part) as f64 / 1e6)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Effect;

    #[test]
    fn a_page_is_whole_and_escapes_what_it_shows() {
        let verdict = |question: &str| Verdict {
            question: question.into(),
            effect: Some(Effect {
                percent: -5.0,
                low_percent: -9.0,
                high_percent: -1.0,
                coverage_percent: 95.0,
                p: 0.01,
                rounds: 9,
            }),
            p_holm: Some(0.02),
            noise_floor_percent: Some(1.0),
            answer: "bound faster".into(),
        };
        let mut page = Page::new();
        page.heading("<a> & b");
        page.verdicts(&[verdict("workers' scheduler latency, x"), verdict("start-up")]);
        page.cdfs("t", "ms", &[("a".into(), vec![1.0, 2.0]), ("b".into(), vec![1.5, 3.0])]);
        page.bars("t", &[("a".into(), vec![("P1", 1.0), ("P5", 2.0)])]);
        let bio = OneBio {
            read_begun_ns: 1,
            arrived_ns: 2,
            ready_ns: 2,
            started_ns: 5,
            ended_ns: 8,
            delivered_ns: 9,
            bytes: 4096,
        };
        page.timelines(&[("a".into(), bio)]);
        let text = page.finish();
        assert!(text.contains("&lt;a&gt; &amp; b") && !text.contains("<a>"));
        let count = |what: &str| text.matches(what).count();
        assert_eq!((count("class=\"effect\""), count("class=\"band\""), count("class=\"verdict\"")), (2, 1, 2));
        assert_eq!(count("<svg"), count("</svg>"));
        assert_eq!((count("<svg"), count("<polyline"), count("class=\"bio\"")), (4, 2, 1));
        // Nothing is fetched from anywhere.
        assert!(!text.contains("http") && !text.contains("<script") && !text.contains("url("));
    }
}
