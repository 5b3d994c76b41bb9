// Labels, colours and the layout that all plots share. Users' text reaches the page only as text nodes, attributes or,
// in plotly's labels, with its markup escaped.

const shown = (text) => text.replace(/\r?\n/g, "↵").replace(/\t/g, "→").replace(/[\u0000-\u001f\u007f]/g, "·");
const short = (text, most) => {
  const letters = Array.from(shown(text));
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
};
// plotly interprets some markup in its labels, and TeX between dollar signs
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
const number = (weight) => {
  const size = Math.abs(weight);
  const digits = size === 0 ? "0" : size < 0.0005 ? "<0.0005" : size.toFixed(3);
  return (weight < 0 ? "−" : "") + digits;
};
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const FAINTEST = 1e-4; // weight that the logarithmic scale shows as nothing
const TONES = {
  root: Math.sqrt, linear: (size) => size, log: (size) => Math.max(0, 1 - Math.log10(Math.max(size, FAINTEST)) / Math.log10(FAINTEST)),
};
// How strong a colour is for a weight, from -1 to 1.
const tone = (weight) => Math.sign(weight) * TONES[state.scale](Math.abs(weight));

function scaleOf(signed) {
  const middle = style("--none");
  const positive = `rgb(${style("--positive")})`;
  return signed ? [[0, `rgb(${style("--negative")})`], [0.5, middle], [1, positive]] : [[0, middle], [1, positive]];
}

function ticksOf(largest, signed) {
  const steps = { root: [0, 0.01, 0.05, 0.2, 0.5, 1], linear: [0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1], log: [0, 0.001, 0.01, 0.1, 1] };
  const sizes = steps[state.scale].filter((size) => size <= largest * 1.001);
  const values = signed ? [...sizes.slice(1).reverse().map((size) => -size), ...sizes] : sizes;
  return { tickvals: values.map(tone), ticktext: values.map((value) => String(value).replace("-", "−")) };
}

function layoutOf(more) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: style("--hidden"), font: { color: style("--text"), size: 12 },
    hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--text"), size: 13 }, align: "left" },
    dragmode: coarse.matches ? false : "zoom", // a touch scrolls the page
    ...more,
  };
}

// The buttons are named one by one, because a release of plotly added one that uploads the chart.
const BUTTONS = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
const CONFIG = { responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: BUTTONS };
const configOf = () => ({ ...CONFIG, displayModeBar: coarse.matches ? false : "hover" });
const draw = (id, traces, layout) => Plotly.react($(id), traces, layoutOf(layout), configOf());
