#include "client/cli/html_style.h"

namespace quantgate {

// Ramps run from the background towards ink, so that "more" stands out in either theme: h0-h9
// error, q0-q5 SQNR.
const char kReportStyle[] = R"css(
:root {
  color-scheme: light dark;
  --bg: #f6f6f3; --card: #ffffff; --ink: #1d2025; --dim: #6a6f78; --line: #e2e2dc; --soft: #f0f0ec;
  --accent: #3557b7; --good: #1c7a4d; --good-bg: #e4f3ea; --bad: #b3263a; --bad-bg: #fbe6e8;
  --inform-bg: #e9edf8;
  --h0: #f2eff4; --h1: #e7d9ee; --h2: #d8bfe3; --h3: #c7a3d7; --h4: #b386c9; --h5: #9c69b8;
  --h6: #834da3;
  --h7: #68358a; --h8: #4c206c; --h9: #300f4b;
  --q0: #f4f5f4; --q1: #e8f1ef; --q2: #d7eae6; --q3: #c2e1db; --q4: #aad6ce; --q5: #8fcabf;
  --part: #3f9d8e; --hot: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #121316; --card: #1a1c20; --ink: #e7e7e3; --dim: #9aa0a9; --line: #2d3036;
  --soft: #22252a;
    --accent: #8ea8f5; --good: #63c796; --good-bg: #17301f; --bad: #f0808f; --bad-bg: #3a181e;
  --inform-bg: #1d2540;
    --h0: #211f26; --h1: #31233f; --h2: #432c58; --h3: #573571; --h4: #6d3f8b; --h5: #844ba4;
  --h6: #9c5cba;
    --h7: #b574cd; --h8: #ce94de; --h9: #e9c2f0;
    --q0: #1d2123; --q1: #1b2c2b; --q2: #1c3a37; --q3: #1e4a45; --q4: #205751; --q5: #246860;
    --part: #3fa092; --hot: #17181b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 14px/1.5 system-ui,
  -apple-system, "Segoe UI",
  "Liberation Sans", "DejaVu Sans", sans-serif; -webkit-text-size-adjust: 100%; }
main, header { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
.brand { font-weight: 650; letter-spacing: .02em; color: var(--accent); }
h1 { font-size: 24px; line-height: 1.25; margin: 4px 0 2px; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 10px; font-weight: 650; }
h3 { font-size: 15px; margin: 0; font-weight: 650; }
h4 { font-size: 11.5px; margin: 18px 0 6px; font-weight: 600; color: var(--dim);
  text-transform: uppercase;
  letter-spacing: .05em; }
p { margin: 6px 0; }
code, pre, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono",
  "DejaVu Sans Mono",
  monospace; font-size: 12px; }
code { overflow-wrap: anywhere; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 12px; margin: 6px 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.dim { color: var(--dim); }
.good { color: var(--good); }
.bad { color: var(--bad); }
.banner { display: flex; gap: 16px; align-items: baseline; border-radius: 10px;
  padding: 14px 18px; margin: 18px 0 8px;
  border: 1px solid var(--line); background: var(--inform-bg); }
.banner strong { font-size: 17px; letter-spacing: .03em; color: var(--accent); }
.banner.pass { background: var(--good-bg); } .banner.pass strong { color: var(--good); }
.banner.fail { background: var(--bad-bg); } .banner.fail strong { color: var(--bad); }
.banner p { margin: 0; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 18px; min-width: 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(500px, 100%), 1fr));
  gap: 14px;
  align-items: start; }
.cards.small { grid-template-columns: repeat(auto-fit, minmax(min(310px, 100%), 1fr)); }
.head { display: flex; justify-content: space-between; align-items: baseline; gap: 12px;
  flex-wrap: wrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--dim); font-size: 12px;
  padding: 4px 12px 4px 0;
  border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: bottom; }
td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th:last-child, td:last-child { padding-right: 0; }
.r { text-align: right; }
.matrix { border-collapse: separate; border-spacing: 4px; margin: 0 -4px; width: calc(100% + 8px); }
.matrix th { border: 0; padding: 2px 8px; }
.matrix td { border: 0; padding: 8px 10px; border-radius: 7px; line-height: 1.35;
  white-space: nowrap; }
.matrix td.label { padding-left: 2px; white-space: normal; min-width: 170px; }
.matrix b { font-size: 16px; font-weight: 650; }
.matrix small { display: block; font-size: 11.5px; opacity: .78; }
.matrix small .good { color: inherit; font-weight: 650; }
.matrix small:has(.good) { opacity: 1; }
.matrix td.broken { outline: 2px solid var(--bad); outline-offset: -2px; }
.pairs td { text-align: center; padding: 7px 10px; min-width: 74px; }
.pairs td.hot { color: var(--hot); }
.pairs { width: auto; }
.pairs td.label { text-align: left; }
.q0 { background: var(--q0); } .q1 { background: var(--q1); } .q2 { background: var(--q2); }
.q3 { background: var(--q3); } .q4 { background: var(--q4); } .q5 { background: var(--q5); }
.key { display: flex; gap: 6px 16px; flex-wrap: wrap; color: var(--dim); font-size: 12px;
  margin-top: 8px; }
.key i { display: inline-block; width: 14px; height: 10px; border-radius: 2px; margin-right: 5px; }
.b0 { background: var(--h0); } .b1 { background: var(--h1); } .b2 { background: var(--h2); }
.b3 { background: var(--h3); } .b4 { background: var(--h4); } .b5 { background: var(--h5); }
.b6 { background: var(--h6); } .b7 { background: var(--h7); } .b8 { background: var(--h8); }
.b9 { background: var(--h9); }
.h0 { fill: var(--h0); } .h1 { fill: var(--h1); } .h2 { fill: var(--h2); } .h3 { fill: var(--h3); }
.h4 { fill: var(--h4); } .h5 { fill: var(--h5); } .h6 { fill: var(--h6); } .h7 { fill: var(--h7); }
.h8 { fill: var(--h8); } .h9 { fill: var(--h9); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(96px, 1fr)); gap: 8px 12px;
  margin: 8px 0; }
dt { color: var(--dim); font-size: 11.5px; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.pictures { display: grid; grid-template-columns: minmax(0, 1.7fr) minmax(0, 1fr); gap: 18px;
  align-items: start; }
.card > h4:first-child { margin-top: 0; }
.cards.small dl { grid-template-columns: repeat(3, max-content); }
@media (max-width: 560px) { .pictures { grid-template-columns: 1fr; }
main, header { padding: 0 12px; } }
svg.chart { width: 100%; height: auto; display: block; }
svg.heat { width: 100%; aspect-ratio: 1; display: block; border-radius: 4px; }
svg.heat.strip { aspect-ratio: 6; }
.elements td { white-space: nowrap; }
.elements td:first-child { white-space: normal; }
.value { display: block; }
.elements code { color: var(--dim); }
.axis { stroke: var(--line); }
rect.zero { fill: var(--good); } rect.off { fill: var(--accent); }
rect.worst { fill: none; stroke: var(--bad); stroke-width: 2; vector-effect: non-scaling-stroke; }
.tick { font-size: 9px; fill: var(--dim); text-anchor: middle; }
.tick.low { text-anchor: end; } .tick.first { text-anchor: start; }
rect.task0 { fill: var(--accent); } rect.task1 { fill: #d8892b; } rect.task2 { fill: var(--part); }
rect.task3 { fill: var(--h6); }
.ramp { display: flex; align-items: center; gap: 1px; margin-top: 5px; font-size: 11px;
  color: var(--dim); }
.ramp i { flex: 1; height: 7px; } .ramp span { padding: 0 5px; }
.ramp span:first-child { padding-left: 0; }
.ramp span:last-child { padding-right: 0; }
.stack { display: flex; height: 12px; border-radius: 4px; overflow: hidden; gap: 1px;
  margin: 4px 0; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 12px; }
.legend i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 5px; }
.c0 { background: var(--part); } .c1 { background: var(--line); } .c2 { background: var(--h3); }
.c3 { background: var(--h5); } .c4 { background: var(--h7); } .c5 { background: #d8892b; }
.c6 { background: var(--bad); }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 3px 12px;
  align-items: center; }
.bars b { display: block; height: 9px; background: var(--soft); border-radius: 3px; }
.bars i { display: block; height: 9px; background: var(--accent); border-radius: 3px;
  min-width: 1px; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  margin: 10px 0; }
details > summary { cursor: pointer; padding: 13px 18px; display: flex; gap: 4px 14px;
  align-items: baseline; flex-wrap: wrap;
  list-style: none; }
details > summary::-webkit-details-marker { display: none; }
details > summary::before { content: "\25B8"; color: var(--dim); width: 10px; }
details[open] > summary::before { content: "\25BE"; }
details > div { padding: 0 18px 18px; scroll-margin-top: 60px; }
details .card { background: transparent; }
.chip { font-size: 11.5px; padding: 1px 8px; border-radius: 99px; background: var(--soft);
  color: var(--dim);
  white-space: nowrap; }
.chip.good { background: var(--good-bg); color: var(--good); }
.chip.bad { background: var(--bad-bg); color: var(--bad); }
footer { max-width: 1180px; margin: 32px auto; padding: 0 24px; color: var(--dim);
  font-size: 12px; }
@media print { details > summary::before { content: ""; } body { background: #fff; }
.card, details { break-inside: avoid; } }
)css";

}  // namespace quantgate
