// What is selected, the controls that select it, and the texts shaded by the weights of the selected token.

const state = { model: 0, layer: 0, head: 0, map: "difference", side: "from", query: 0, key: 0 };
let weights = []; // of the displayed head
const model = () => meta.models[state.model];
const layer = () => model().layers[state.layer];
const tokens = (which) => model().sequences[layer()[which]];
const isSelf = () => layer().queries === layer().keys;
const isSigned = () => layer().each === 2 && state.map === "difference";
const visible = (query, key) => layer().bits[query * layer().shape[1] + key] === 1;
const named = (which, index) => `${index} “${short(tokens(which)[index].text, 24)}”`;
const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));

function options(select, labels, chosen) {
  select.replaceChildren(...labels.map((label, index) => new Option(label, index, false, index === chosen)));
}

function choose(change) {
  const before = { ...state };
  Object.assign(state, change);
  if (state.model !== before.model) state.layer = clamp(state.layer, model().layers.length);
  const [N, M] = layer().shape;
  state.head = clamp(state.head, layer().heads);
  state.query = clamp(state.query, N);
  state.key = clamp(state.key, M);
  const changed = (...names) => names.some((name) => state[name] !== before[name]);
  if (changed("model")) { drawMasks(); drawPositions(); drawCurves(); drawMeasureChoice(); }
  if (changed("model", "layer")) drawTokens();
  if (changed("model", "layer", "head", "map")) {
    weights = weightsOf(layer(), state.head, state.map);
    drawControls();
    drawMap();
    drawOverview();
    if (changed("model", "layer", "map")) drawHeads();
    else markHead();
  } else if (changed("query", "key")) markCell();
  shade();
}

function drawControls() {
  options($("layer"), model().layers.map((one) => one.name), state.layer);
  options($("head"), Array.from({ length: layer().heads }, (_, head) => String(head)), state.head);
  $("model").value = state.model;
  $("maps").hidden = layer().each === 1;
  const lambdas = layer().lambda;
  $("lambda").textContent = "";
  if (lambdas) {
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
      const alpha = strongest * Math.sqrt(Math.abs(weight) / largest);
      if (weight) span.style.background = `rgba(${style(weight < 0 ? "--negative" : "--positive")}, ${alpha.toFixed(3)})`;
      span.title = seen(index) ? `${number(weight)} · token ${index}` : `hidden by the mask · token ${index}`;
    }
  }
  choosing.setAttribute("aria-activedescendant", `${choosing.id}-${chosen}`);
  const order = Array.from(values.keys()).filter(seen).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, 8);
  const what = named(from ? "queries" : isSelf() ? "queries" : "keys", chosen);
  const best = order.slice(0, 3).map((index) => `${named(others, index)} ${number(values[index])}`).join(", ");
  $("said").textContent = from ? `Token ${what} looks at ${best || "nothing"}.` : `Token ${what} is looked at by ${best || "nothing"}.`;
  $("strongest").caption.textContent = from ? `Where ${what} looks most` : `Who looks most at ${what}`;
  $("strongest").tBodies[0].replaceChildren(...order.map((index) => {
    const row = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = named(others, index);
    const cell = document.createElement("td");
    cell.className = "number";
    cell.textContent = number(values[index]);
    const barCell = document.createElement("td");
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.style.width = `${(100 * Math.abs(values[index])) / largest}%`;
    bar.style.background = `rgb(${style(values[index] < 0 ? "--negative" : "--positive")})`;
    barCell.append(bar);
    row.append(head, cell, barCell);
    return row;
  }));
}
