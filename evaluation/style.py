"""How the page of an evaluation looks: light, dark, narrow, and on paper."""

LIGHT = {
    "text": "#1a1a1a",
    "muted": "#565c64",
    "page": "#f4f5f7",
    "card": "#ffffff",
    "band": "#f1f3f6",
    "line": "#e2e4e8",
    "good": "#00603f",
    "bad": "#a33a06",
    "shade": "#a9cfe8",
}

DARK = {
    "text": "#e6e8eb",
    "muted": "#a9b0ba",
    "page": "#0f1216",
    "card": "#181c22",
    "band": "#222831",
    "line": "#323943",
    "good": "#5fd1a5",
    "bad": "#ffa070",
    "shade": "#1f5a80",
}
"""The same names; text on page, card, band and shade keeps a contrast of 4.5 and more in both."""


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ {_variables(DARK)} }}
  img.plot {{ filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; }}
}}
* {{ box-sizing: border-box; }}
body {{ font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--text);
  background: var(--page); margin: 0; }}
main {{ max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }}
h1 {{ font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }}
h2 {{ font-size: 18px; margin: 0 0 10px; }}
p.about {{ color: var(--muted); margin: 0 0 22px; overflow-wrap: anywhere; }}
p.verdict {{ font-size: 17px; margin: 0 0 12px; max-width: 60em; overflow-wrap: anywhere; }}
p.note, figcaption {{ color: var(--muted); font-size: 13px; margin: 8px 0 0; max-width: 75em; }}
section {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin: 0 0 18px; }}
.pair {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 18px;
  margin: 0 0 18px; }}
.pair section {{ margin: 0; min-width: 0; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; min-width: min(100%, 560px); font-size: 13.5px;
  font-variant-numeric: tabular-nums; }}
th, td {{ padding: 5px 14px 5px 8px; border-bottom: 1px solid var(--line); vertical-align: top; text-align: right; }}
th {{ font-weight: 600; }}
thead th, thead td {{ color: var(--muted); border-bottom: 2px solid var(--line); vertical-align: bottom; }}
tbody th, thead th:first-child {{ text-align: left; }}
th[scope=row] {{ font-weight: 400; }}
th.words {{ overflow-wrap: anywhere; min-width: 15em; }}
th[scope=rowgroup] {{ background: var(--band); }}
td {{ white-space: nowrap; }}
td.words {{ white-space: normal; }}
td small {{ display: block; color: var(--muted); font-size: 11.5px; }}
td.best {{ font-weight: 700; }}
td.best small {{ font-weight: 400; }}
.better, td.best {{ color: var(--good); }}
.worse, .wrong {{ color: var(--bad); }}
.better small, .worse small {{ color: inherit; }}
td.shaded {{ background: color-mix(in srgb, var(--shade) calc(1% * var(--part)), transparent); text-align: center; }}
details {{ margin: 10px 0 0; }}
summary {{ cursor: pointer; }}
figure {{ margin: 0; }}
figure + .wide {{ margin-top: 14px; }}
img.plot {{ max-width: 100%; height: auto; display: block; margin: 0 auto; }}
img.broad {{ min-width: 680px; }}
img.thumb {{ width: 64px; height: 64px; object-fit: contain; image-rendering: pixelated; border-radius: 4px;
  vertical-align: middle; }}
@media (max-width: 600px) {{
  main {{ padding: 16px 10px 40px; }}
  section {{ padding: 14px 12px; }}
  th, td {{ padding: 5px 6px; }}
}}
@media print {{
  body {{ background: none; font-size: 12px; }}
  main {{ max-width: none; padding: 0; }}
  section {{ border: 0; padding: 0; break-inside: avoid-page; }}
  h2 {{ break-after: avoid; }}
  tr, figure {{ break-inside: avoid; }}
  table {{ font-size: 10.5px; }}
  .wide {{ overflow: visible; }}
  td, th {{ white-space: normal; padding: 3px 5px; }}
  img.broad {{ min-width: 0; }}
}}
"""
