// What is selected, the controls that select it, and the texts shaded by the weights of the selected token.

const state = { model: 0, layer: 0, head: 0, map: "difference", scale: "root", first: true, side: "from", query: 0, key: 0 };
let weights = []; // of the displayed head
const model = () => meta.models[state.model];
const layer = () => model().layers[state.layer];
const tokens = (which) => model().sequences[layer()[which]];
const isSelf = () => layer().queries === layer().keys;
const isSigned = () => layer().each === 2 && state.map === "difference";
// By the mask, and with "without the first token" no first key.
const isVisible = (one, query, key) => one.bits[query * one.shape[1] + key] === 1 && (key > 0 || state.first);
const visible = (query, key) => isVisible(layer(), query, key);
const hiddenBy = (key) => (key || state.first ? "hidden by the mask" : "left out");
const headName = (head) => (head === MEAN ? "mean over heads" : `head ${head}`);
const named = (which, index) => `${index} “${short(tokens(which)[index].text, 24)}”`;
const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));

function shownWeights(one, head, map = state.map) {
  const rows = weightsOf(one, head, map);
  if (!state.first) for (const row of rows) row[0] = 0;
  return rows;
}

// Layers whose maps have shares, which largest weights are not.
const measured = () => model().layers.filter((one) => !one.peaks);

// What a query leaves on no token, as with a learned sink; null where its weights sum to one or are not all of a map.
const restOf = (row) => (layer().rest && !isSigned() && state.first ? Math.max(0, 1 - row.reduce((sum, weight) => sum + weight, 0)) : null);

function options(select, labels, chosen) {
  select.replaceChildren(...labels.map((label, index) => new Option(label, index, false, index === chosen)));
}

// The state as the end of the address, and back. A page within another has no address of its own.
function remember() {
  if (location.protocol === "about:") return;
  const said = new URLSearchParams({ layer: layer().name, head: state.head === MEAN ? "mean" : state.head });
  if (meta.models.length > 1) said.set("model", state.model);
  if (layer().each === 2) said.set("map", state.map);
  said.set("scale", state.scale);
  if (!state.first) said.set("first", "off");
  said.set("query", state.query);
  said.set("key", state.key);
  history.replaceState(null, "", `#${said}`);
}

function remembered() {
  const said = new URLSearchParams(location.hash.slice(1));
  const index = (name, count) => (/^\d+$/.test(said.get(name) ?? "") && Number(said.get(name)) < count ? { [name]: Number(said.get(name)) } : {});
  const one = (name, known) => (known.includes(said.get(name)) ? { [name]: said.get(name) } : {});
  const found = { ...index("model", meta.models.length), ...one("map", ["difference", "first", "second"]), ...one("scale", Object.keys(TONES)) };
  const layers = meta.models[found.model ?? state.model].layers;
  const place = layers.findIndex((each) => each.name === said.get("layer"));
  if (place >= 0) Object.assign(found, { layer: place }, said.get("head") === "mean" ? { head: MEAN } : index("head", layers[place].heads));
  return { ...found, ...index("query", Infinity), ...index("key", Infinity), ...(said.size ? { first: said.get("first") !== "off" } : {}) };
}

function choose(change) {
  const before = { ...state };
  Object.assign(state, change);
  if (state.model !== before.model) state.layer = clamp(state.layer, model().layers.length);
  const [N, M] = layer().shape;
  if (state.head !== MEAN) state.head = clamp(state.head, layer().heads);
  state.query = clamp(state.query, N);
  state.key = clamp(state.key, M);
  const changed = (...names) => names.some((name) => state[name] !== before[name]);
  if (changed("model")) { drawMasks(); drawPositions(); drawCurves(); drawMeasureChoice(); }
  if (changed("model", "layer")) drawTokens();
  if (changed("model", "layer", "head", "map", "scale", "first")) {
    weights = shownWeights(layer(), state.head);
    drawControls();
    drawMap();
    drawBeside();
    drawOverview();
    if (changed("model", "layer", "map", "scale", "first")) drawHeads();
    else markHead();
    if (changed("model", "map", "scale", "first")) drawGrid();
    else markGrid();
  } else if (changed("query", "key")) markCell();
  shade();
  remember();
}

function drawControls() {
  options($("layer"), model().layers.map((one) => one.name), state.layer);
  options($("head"), Array.from({ length: layer().heads }, (_, head) => String(head)), state.head);
  $("head").append(new Option("mean", MEAN, false, state.head === MEAN));
  $("model").value = state.model;
  $("scale").value = state.scale;
  $("first").checked = !state.first;
  document.querySelector(`input[name=map][value=${state.map}]`).checked = true;
  $("maps").hidden = layer().each === 1;
  const lambdas = layer().lambda;
  $("lambda").textContent = "";
  if (lambdas && state.head !== MEAN) {
    const N = layer().shape[0];
    const own = lambdas.slice(state.head * N, (state.head + 1) * N);
    const low = Math.min(...own), high = Math.max(...own);
    const adds = low >= 0 ? "" : high < 0 ? "; below 0: the second map is added" : "; where it is below 0, the second map is added";
    $("lambda").textContent = (high - low < 5e-4 ? `λ = ${low.toFixed(3)}` : `λ from ${low.toFixed(3)} to ${high.toFixed(3)} by token`) + adds;
  }
}

function drawTokens() {
  const fill = (id, which) => {
    // words of a tokenizer that drops the spaces between them
    $(id).classList.toggle("apart", !tokens(which).some((token) => /\s/.test(token.text)));
    $(id).replaceChildren(...tokens(which).map((token, index) => {
      const span = document.createElement("span");
      span.id = `${id}-${index}`;
      span.setAttribute("role", "option");
      span.textContent = token.text === "" ? "∅" : token.text.replace(/\r?\n/g, "↵\n").replace(/\t/g, "→\t");
      span.dataset.index = index;
      return span;
    }));
  };
  fill("queries", "queries");
  fill("keys", "keys");
  for (const id of ["keys", "keys-title", "queries-title"]) $(id).hidden = isSelf();
  $("queries-title").textContent = `Queries: ${layer().queries}`;
  $("keys-title").textContent = `Keys: ${layer().keys}`;
}

// The weights of the selected token: on the text, as a sentence and as a table.
function shade() {
  const from = state.side === "from";
  const chosen = from ? state.query : isSelf() ? state.query : state.key;
  const values = from ? weights[chosen] : weights.map((row) => row[chosen]);
  const others = from ? "keys" : "queries";
  const seen = (index) => (from ? visible(chosen, index) : visible(index, chosen));
  const largest = Math.max(1e-9, ...values.map(Math.abs));
  const strongest = Number(style("--strongest"));
  const shadedBox = $(isSelf() ? "queries" : others);
  const choosing = $(isSelf() ? "queries" : from ? "queries" : "keys");
  for (const box of [$("queries"), $("keys")]) {
    for (const span of box.children) {
      const index = Number(span.dataset.index);
      const isChosen = box === choosing && index === chosen;
      span.classList.toggle("chosen", isChosen);
      span.setAttribute("aria-selected", String(isChosen));
      span.style.background = "";
      span.title = "";
      if (box !== shadedBox) continue;
      const weight = values[index];
      const alpha = (strongest * Math.abs(tone(weight))) / tone(largest);
      if (weight) span.style.background = `rgba(${style(weight < 0 ? "--negative" : "--positive")}, ${alpha.toFixed(3)})`;
      span.title = seen(index) ? `${number(weight)} · token ${index}` : `${hiddenBy(from ? index : chosen)} · token ${index}`;
    }
  }
  choosing.setAttribute("aria-activedescendant", `${choosing.id}-${chosen}`);
  const order = Array.from(values.keys()).filter(seen).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, 8);
  const what = named(from ? "queries" : isSelf() ? "queries" : "keys", chosen);
  const best = order.slice(0, 3).map((index) => `${named(others, index)} ${number(values[index])}`).join(", ");
  const rest = from ? restOf(values) : null;
  const nowhere = rest === null ? "" : ` and at no token ${number(rest)}`;
  $("said").textContent = from ? `${model().unit} ${what} looks at ${best || "nothing"}${nowhere}.` : `${model().unit} ${what} is looked at by ${best || "nothing"}.`;
  $("strongest").caption.textContent = from ? `Where ${what} looks most` : `Who looks most at ${what}`;
  $("strongest").tBodies[0].replaceChildren(...order.map((index) => barRow(
    named(others, index), number(values[index]), Math.abs(values[index]) / largest, values[index] < 0 ? "--negative" : "--positive",
  )));
}

// A row of a table: a name (text or an element), a number, and a bar of a share of the width.
function barRow(name, text, share, colour) {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.append(name);
  const cell = document.createElement("td");
  cell.className = "number";
  cell.textContent = text;
  const barCell = document.createElement("td");
  const bar = document.createElement("span");
  bar.className = "bar";
  bar.style.width = `${100 * share}%`;
  bar.style.background = `rgb(${style(colour)})`;
  barCell.append(bar);
  row.append(head, cell, barCell);
  return row;
}
