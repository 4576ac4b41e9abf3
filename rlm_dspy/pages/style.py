"""The look. Colours are mid-tones and shades of the text's own colour, so that they stand on light and on dark."""

from __future__ import annotations

PAGE = """
:root{color-scheme:light dark}
body{margin:0 auto;max-width:70rem;padding:1rem clamp(.6rem,3vw,2rem);background:Canvas;color:CanvasText;
font:15px/1.5 system-ui,sans-serif}
@media print{body{max-width:none;padding:0;font-size:11px}}
""".replace("\n", "")
"""Of a page of its own."""

STYLE = """
.rlm-page{--line:color-mix(in srgb,currentColor 18%,transparent);--soft:color-mix(in srgb,currentColor 6%,transparent);
--act:#4a86d8;--execute:#2f9e72;--call:#d98a1f;--child:#9a6bd6;--extract:#c05f9e;--bad:#d64545;
text-align:left;overflow-wrap:anywhere}
.rlm-page p{margin:.35em 0}
.rlm-page .dim{color:color-mix(in srgb,currentColor 68%,transparent)}
.rlm-page .err{color:var(--bad)}
.rlm-page small{font-size:85%}
.rlm-page code,.rlm-page pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.87em;
background:none;color:inherit}
.rlm-page pre{margin:.4em 0;padding:.5em .7em;white-space:pre-wrap;overflow-wrap:anywhere;max-height:26em;overflow:auto;
background:var(--soft);border:0;border-left:3px solid var(--line);border-radius:3px;line-height:1.45;text-align:left}
.rlm-page pre.code{border-left-color:var(--execute)}
.rlm-page pre.reply{border-left-color:var(--act)}
.rlm-page pre.bad{border-left-color:var(--bad)}
.rlm-page pre.output,.rlm-page pre.bad{background:none}
.rlm-page .ask{font-size:1.12em;font-weight:600;white-space:pre-line}
.rlm-page .facts{display:flex;flex-wrap:wrap;gap:.2em .9em;align-items:center}
.rlm-page .facts>span:not(.pill){opacity:.8}
.rlm-page .pill{padding:.05em .6em;border-radius:1em;border:1px solid;font-size:.85em;font-weight:600;
white-space:nowrap}
.rlm-page .submitted,.rlm-page .direct{color:var(--execute)}
.rlm-page .extracted{color:var(--call)}
.rlm-page .failed{color:var(--bad)}
.rlm-page .answer{margin:.8em 0;padding:.4em .8em;border:1px solid var(--line);border-radius:6px}
.rlm-page .answer small{opacity:.68}
.rlm-page .answer pre{background:none;border:0;padding:0;margin:0 0 .3em;font-weight:600}
.rlm-page details{margin:.35em 0}
.rlm-page summary{cursor:pointer;padding:.15em 0}
.rlm-page .turn,.rlm-page .child{border:1px solid var(--line);border-radius:6px;padding:.2em .7em}
.rlm-page .child{border-left:3px solid var(--child);margin:.5em 0}
.rlm-page .plan{opacity:.85}
.rlm-page details[open]>summary>.plan{display:none}
.rlm-page .why{white-space:pre-wrap}
.rlm-page .mark{margin:.4em 0;padding:.1em .7em;border-left:3px solid var(--call)}
.rlm-page img{max-width:100%;background:#fff}
.rlm-page .wide{overflow-x:auto}
.rlm-page .wide table{min-width:32em}
.rlm-page .wide td{overflow-wrap:break-word;min-width:3em}
.rlm-page table{border-collapse:collapse;width:100%;margin:.3em 0;font-size:.92em}
.rlm-page tr,.rlm-page td,.rlm-page th{background:none!important;text-align:left}
.rlm-page td,.rlm-page th{padding:.2em .7em .2em 0;border:0;border-top:1px solid var(--line);vertical-align:top;
white-space:normal;max-width:30em}
.rlm-page th{border-top:0;font-weight:600;opacity:.68}
.rlm-page .n{text-align:right;white-space:nowrap}
.rlm-page .share{width:20%;min-width:4em;padding-right:0}
.rlm-page .share .b{position:static;display:block;height:.75em;margin-top:.35em}
.rlm-page .legend{display:flex;flex-wrap:wrap;gap:.1em 1em;font-size:.85em}
.rlm-page .legend .b{position:static;display:inline-block;width:.8em;height:.8em;margin-right:.35em}
.rlm-page .row{display:grid;grid-template-columns:minmax(5em,10em) minmax(0,1fr) 4.6em 4.6em;gap:.6em;
align-items:center;font-size:.86em;line-height:1.25;padding:.1em 0}
.rlm-page .row>.name{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.rlm-page .row .num{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.rlm-page .row small,.rlm-page .axis .num{opacity:.68}
.rlm-page .row>.name{padding-left:calc(var(--in)*.65em)}
.rlm-page .spent{position:relative;padding:.1em .25em .1em 0}
.rlm-page .spent .b{top:0;right:0;height:100%;min-width:1px;background:var(--act);opacity:.3}
.rlm-page .axis .num:last-child{padding-right:.25em}
.rlm-page .track{position:relative;height:1.25em;background:var(--soft);border-radius:2px}
.rlm-page .axis .track{background:none}
.rlm-page .axis .track span{position:absolute;font-size:.9em;opacity:.68;white-space:nowrap;padding-left:2px;
border-left:1px solid var(--line)}
.rlm-page .b{position:absolute;top:.15em;height:.95em;min-width:2px;border-radius:1px}
.rlm-page .open{background:color-mix(in srgb,currentColor 35%,transparent)}
.rlm-page .act{background:var(--act)}
.rlm-page .execute{background:var(--execute)}
.rlm-page .call{background:var(--call);top:.6em;height:.5em}
.rlm-page .child.b{background:var(--child);border:0;margin-top:0;margin-bottom:0;padding:0;opacity:.8}
.rlm-page .track .b{margin:0}
.rlm-page .extract,.rlm-page .compact{background:var(--extract)}
.rlm-page .b.bad{background-image:repeating-linear-gradient(45deg,var(--bad) 0 3px,transparent 3px 6px)}
@media (max-width:40rem){.rlm-page .row{grid-template-columns:5.4em minmax(0,1fr) 3.6em 4.3em;
gap:.35em}
.rlm-page .row>.name{padding-left:calc(var(--in)*.2em)}
.rlm-page .row small{display:none}.rlm-page .turn,.rlm-page .child{padding:.2em .45em}}
@media print{.rlm-page pre{max-height:none;overflow:visible}.rlm-page .wide{overflow:visible}
.rlm-page details::details-content{content-visibility:visible;block-size:auto;opacity:1}
.rlm-page .turn,.rlm-page .child{break-inside:auto}.rlm-page summary{break-after:avoid}
.rlm-page *{print-color-adjust:exact}}
""".replace("\n", "")
"""Of a page and of a notebook's output alike."""
