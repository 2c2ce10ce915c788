"""What pages of runs add to the style sheet of every page."""

STYLE = """
.whence {
  .stats { display: flex; flex-wrap: wrap; gap: 12px 32px; margin: 16px 0 0; }
  .stats dt { font-size: 12px; color: var(--faint); } .stats dd { margin: 0; font-size: 20px; font-weight: 600; }
  .swarms { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px 40px; margin-top: 8px; }
  .swarms > * { min-width: 0; } .swarms figcaption { font-size: 13px; margin-bottom: 4px; }
  .unit { display: grid; grid-template-columns: 104px minmax(0, 1fr) 38px; gap: 8px; align-items: center; }
  .unit .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; text-align: right; font-size: 13px; }
  .unit .num { text-align: right; }
  .unit svg, .histogram { width: 100%; display: block; overflow: visible; }
  .unit + .unit svg { border: 0; }
  .unit text, .histogram text { font: 11px var(--sans); fill: var(--faint); }
  .unit .zero { stroke: var(--edge); } .unit .grid, .histogram .grid { stroke: var(--line); }
  .unit circle { opacity: .55; } .unit a:hover circle { opacity: 1; stroke: var(--ink); }
  .unit circle.for, .unit rect.for { fill: var(--for-solid); }
  .unit circle.against, .unit rect.against { fill: var(--against-solid); }
  .unit circle.size, .unit rect.size, .histogram .size { fill: var(--size-solid); }
  .unit .mean line { stroke: var(--ink); stroke-width: 2; }
  .unit .mean circle { fill: var(--ink); opacity: 1; stroke: var(--paper); }
  .inside > h3 { margin: 20px 0 4px; } h4 .tiny { font-weight: 400; }
  .pages { columns: 12em; padding: 8px 20px; }
  .maps { display: flex; flex-wrap: wrap; gap: 8px 16px; margin: 6px 0 12px; }
  .map { image-rendering: pixelated; border-radius: 3px; height: auto; }
  .row { padding: 8px 4px; border-top: 1px solid var(--line); scroll-margin-top: 24px; }
  .row:target { background: var(--sunk); box-shadow: inset 3px 0 0 var(--accent); padding-left: 12px; }
  .rowfold { border-top: 1px solid var(--line); } .rowfold > summary { padding: 8px 4px; color: var(--ink); }
  .rowfold > :not(summary) { margin: 0 0 6px 20px; } .rowfold h4 { margin-top: 10px !important; }
  .rowfold .cut { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; flex: 1 1 9em; min-width: 0; }
  .rowfold .end { margin-left: auto; white-space: normal; overflow-wrap: anywhere; text-align: right; }
  .row > .tiny, .rowfold > .tiny { overflow-wrap: anywhere; }
  .gain { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px 32px; }
  @media (max-width: 900px) { .swarms, .gain { grid-template-columns: minmax(0, 1fr); } }
  @media (max-width: 640px) { .unit { grid-template-columns: 84px minmax(0, 1fr) 32px; gap: 6px; }
    .stats { display: grid; grid-template-columns: 1fr 1fr; } .rowfold > summary { flex-wrap: wrap; } }
}
"""
