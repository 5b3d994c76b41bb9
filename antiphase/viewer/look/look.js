// The interactive part of the page of attention maps. Everything it draws is embedded in the page: `meta` as JSON,
// arrays as gzip in base85. The difference of two maps is computed here. Users' text reaches the page only as text
// nodes, attributes or, in plotly's labels, with its markup escaped.
"use strict";
(async () => {
  const STEPS = 255;
  const LABELLED = 44; // largest number of tokens whose axis shows them
  const $ = (id) => document.getElementById(id);
  const meta = JSON.parse($("meta").textContent);
  const narrow = matchMedia("(max-width: 600px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse), (max-width: 600px)"); // touch screens: no zoom by dragging, no toolbar

  // base85 with the digits of RFC 1924, except a comma for <
  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const digit = new Uint8Array(128);
  for (let i = 0; i < 85; i++) digit[DIGITS.charCodeAt(i)] = i;

  function bytesOf(text) {
    const lacking = (5 - (text.length % 5)) % 5;
    const whole = text + "~".repeat(lacking);
    const bytes = new DataView(new ArrayBuffer((whole.length / 5) * 4));
    for (let at = 0; at < whole.length; at += 5) {
      let number = 0;
      for (let i = 0; i < 5; i++) number = number * 85 + digit[whole.charCodeAt(at + i)];
      bytes.setUint32((at / 5) * 4, number);
    }
    return bytes.buffer.slice(0, bytes.byteLength - lacking);
  }

  async function unpack(id) {
    const bytes = bytesOf($(id).textContent);
    $(id).remove();
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }

  async function loadPlotly() {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await unpack("plotly"));
    document.head.append(script);
  }

  // ------------------------------------------------------------------------------------------------ numbers

  async function loadModel(model) {
    for (const mask of model.masks) mask.bits = new Uint8Array(await unpack(mask.blob));
    for (const layer of model.layers) {
      const buffer = await unpack(layer.blob);
      const [N, M] = model.masks[layer.mask].shape;
      const rows = layer.heads * layer.each * N;
      layer.scales = new Float32Array(buffer, 0, rows);
      layer.lambda = layer.each === 2 ? new Float32Array(buffer, 4 * rows, layer.heads * N) : null;
      layer.codes = new Uint8Array(buffer, 4 * (rows + (layer.lambda ? layer.lambda.length : 0)));
      layer.shape = [N, M];
      layer.bits = model.masks[layer.mask].bits;
      layer.count = layer.bits.reduce((sum, bit) => sum + bit, 0); // visible cells of a map
    }
    if (model.positions) model.positions.values = new Float32Array(await unpack(model.positions.blob));
  }

  // One softmax map as N rows of M weights; hidden cells stay 0.
  function softmaxMap(layer, head, which) {
    const [N, M] = layer.shape;
    const index = head * layer.each + which;
    let at = index * layer.count;
    return Array.from({ length: N }, (_, n) => {
      const row = new Float32Array(M);
      const scale = layer.scales[index * N + n];
      for (let m = 0; m < M; m++) {
        if (layer.bits[n * M + m]) {
          const share = layer.codes[at++] / STEPS;
          row[m] = scale * share * share;
        }
      }
      return row;
    });
  }

  function weightsOf(layer, head, map) {
    if (layer.each === 1 || map === "first") return softmaxMap(layer, head, 0);
    const second = softmaxMap(layer, head, 1);
    if (map === "second") return second;
    return softmaxMap(layer, head, 0).map((row, n) => {
      const lambda = layer.lambda[head * layer.shape[0] + n];
      return row.map((weight, m) => weight - lambda * second[n][m]);
    });
  }

  // Means over queries of the weights that multiply the values, as shares of the sum of |weight|.
  function measures(layer, head) {
    const rows = weightsOf(layer, head, "difference");
    const [N, M] = layer.shape;
    const found = { first: 0, entropy: 0, distance: 0, negative: 0 };
    rows.forEach((row, n) => {
      let total = 0;
      for (const weight of row) total += Math.abs(weight);
      if (!total) return;
      row.forEach((weight, m) => {
        const share = Math.abs(weight) / total;
        if (!share) return;
        found.entropy -= share * Math.log(share);
        found.distance += share * Math.abs(n + M - N - m);
        if (weight < 0) found.negative += share;
      });
      found.first += Math.abs(row[0]) / total;
    });
    for (const name in found) found[name] /= N;
    return found;
  }

  // ------------------------------------------------------------------------------------------------ labels and colours

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
  const root = (weight) => Math.sign(weight) * Math.sqrt(Math.abs(weight));

  function scaleOf(signed) {
    const middle = style("--none");
    const positive = `rgb(${style("--positive")})`;
    return signed ? [[0, `rgb(${style("--negative")})`], [0.5, middle], [1, positive]] : [[0, middle], [1, positive]];
  }

  function ticksOf(largest, signed) {
    const sizes = [0, 0.01, 0.05, 0.2, 0.5, 1].filter((size) => size <= largest * 1.001);
    const values = signed ? [...sizes.slice(1).reverse().map((size) => -size), ...sizes] : sizes;
    return { tickvals: values.map(root), ticktext: values.map((value) => String(value).replace("-", "−")) };
  }

  function layoutOf(more) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: style("--hidden"), font: { color: style("--text"), size: 12 },
      hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--text"), size: 13 }, align: "left" },
      dragmode: coarse.matches ? false : "zoom", // a touch scrolls the page
      ...more,
    };
  }

  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d"] };
  const configOf = () => ({ ...CONFIG, displayModeBar: coarse.matches ? false : "hover" });
  const draw = (id, traces, layout) => Plotly.react($(id), traces, layoutOf(layout), configOf());

  // ------------------------------------------------------------------------------------------------ state

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

  // ------------------------------------------------------------------------------------------------ parts of the page

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
      $("lambda").textContent = high - low < 5e-4 ? `λ = ${low.toFixed(3)}` : `λ from ${low.toFixed(3)} to ${high.toFixed(3)} by token`;
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

  const cells = (rows) => rows.map((row, n) => Array.from(row, (weight, m) => (visible(n, m) ? root(weight) : null)));
  const largestOf = (maps) => {
    let largest = 1e-9;
    for (const rows of maps) for (const row of rows) for (const weight of row) largest = Math.max(largest, Math.abs(weight));
    return largest;
  };

  function tokenAxis(which, title) {
    const list = tokens(which);
    const few = list.length <= (narrow.matches ? 24 : LABELLED);
    const labels = few
      ? { tickmode: "array", tickvals: list.map((_, index) => index), ticktext: list.map((token) => escaped(short(token.text, 10)) || "∅"), tickfont: { size: list.length > 28 ? 9 : 11 } }
      : { title: { text: title, font: { size: 12 } } };
    return { showgrid: false, zeroline: false, automargin: true, ...labels };
  }

  function drawMap() {
    const [N, M] = layer().shape;
    const signed = isSigned();
    const largest = largestOf([weights]);
    const end = Math.sqrt(largest);
    const queries = tokens("queries").map((token, n) => `query ${n} “${escaped(short(token.text, 24))}”`);
    const keys = tokens("keys").map((token, m) => `key ${m} “${escaped(short(token.text, 24))}”`);
    const trace = {
      type: "heatmap", z: cells(weights), zmin: signed ? -end : 0, zmax: end, colorscale: scaleOf(signed), hoverongaps: false,
      text: weights.map((row, n) => Array.from(row, (weight, m) => `${queries[n]}<br>${keys[m]}<br><b>${number(weight)}</b>`)),
      hovertemplate: "%{text}<extra></extra>",
      colorbar: { thickness: 12, len: 0.9, outlinewidth: 0, ...ticksOf(largest, signed) },
    };
    const width = $("map").clientWidth || 360;
    const height = Math.max(220, Math.min(620, (width - 110) * (N / M) + 80));
    draw("map", [trace], {
      height, margin: { l: 46, r: 8, t: 8, b: 46 }, shapes: marks(),
      xaxis: { ...tokenAxis("keys", "key"), tickangle: N <= LABELLED ? -60 : 0, range: [-0.5, M - 0.5] },
      yaxis: { ...tokenAxis("queries", "query"), range: [N - 0.5, -0.5] },
    });
    $("map-title").textContent = `Layer ${layer().name}, head ${state.head}${layer().each === 2 ? `: ${{ difference: "first − λ · second", first: "first map", second: "second map" }[state.map]}` : ""}`;
    sayCell();
  }

  function marks() {
    const [, M] = layer().shape;
    const line = { color: style("--text"), width: 1 };
    return [
      { type: "rect", x0: -0.5, x1: M - 0.5, y0: state.query - 0.5, y1: state.query + 0.5, line: { ...line, dash: "dot" } },
      { type: "rect", x0: state.key - 0.5, x1: state.key + 0.5, y0: state.query - 0.5, y1: state.query + 0.5, line: { ...line, width: 2 } },
    ];
  }

  function markCell() {
    Plotly.relayout($("map"), { shapes: marks() });
    sayCell();
  }

  function sayCell() {
    const seen = visible(state.query, state.key);
    $("cell").textContent = `Query ${named("queries", state.query)}, key ${named("keys", state.key)}: ` +
      (seen ? number(weights[state.query][state.key]) : "hidden by the mask") + ".";
  }

  const NAMES = { first: "share on the first token", entropy: "entropy, nats", distance: "mean distance, tokens", negative: "negative share" };

  function drawMeasureChoice() {
    const has = { negative: model().layers.some((one) => one.each === 2), distance: model().layers.every((one) => one.queries === one.keys) };
    for (const option of $("measure").options) option.hidden = option.disabled = has[option.value] === false;
    if ($("measure").selectedOptions[0].disabled) $("measure").value = "first";
  }

  function drawOverview() {
    const measure = $("measure").value;
    const layers = model().layers;
    for (const one of layers) one.measures ??= Array.from({ length: one.heads }, (_, head) => measures(one, head));
    const heads = Math.max(...layers.map((one) => one.heads));
    const z = layers.map((one) => Array.from({ length: heads }, (_, head) => (head < one.heads ? one.measures[head][measure] : null)));
    const most = Math.max(1e-6, ...z.flat().filter((value) => value !== null));
    draw("overview", [{
      type: "heatmap", z, zmin: 0, zmax: measure === "first" || measure === "negative" ? Math.min(1, most) : most, xgap: 2, ygap: 2,
      colorscale: scaleOf(false), hoverongaps: false, colorbar: { thickness: 12, outlinewidth: 0 },
      hovertemplate: "layer %{y}, head %{x}<br><b>%{z:.3f}</b><extra></extra>", y: layers.map((_, index) => index),
    }], {
      height: Math.max(170, Math.min(460, 90 + 26 * layers.length)), margin: { l: 46, r: 8, t: 8, b: 42 },
      xaxis: { title: { text: "head" }, showgrid: false, zeroline: false, dtick: heads > 16 ? 4 : 1, range: [-0.5, heads - 0.5] },
      yaxis: { title: { text: "layer", standoff: 8 }, automargin: true, showgrid: false, zeroline: false, tickmode: "array", tickvals: layers.map((_, index) => index).filter((index) => layers.length <= 16 || index % 4 === 0), ticktext: layers.map((one) => escaped(one.name)).filter((_, index) => layers.length <= 16 || index % 4 === 0), range: [layers.length - 0.5, -0.5] },
      shapes: [{ type: "rect", x0: state.head - 0.5, x1: state.head + 0.5, y0: state.layer - 0.5, y1: state.layer + 0.5, line: { color: style("--text"), width: 3 } }],
    });
    const value = layer().measures[state.head][measure];
    $("overview-said").textContent = `Layer ${layer().name}, head ${state.head}: ${NAMES[measure]} ${value.toFixed(3)}, mean over queries.`;
  }

  // Small plots side by side: traces with their own axes, and a title above each.
  function panels(count, gap, ratio, width) {
    const columns = Math.min(count, Math.max(2, Math.floor(width / (narrow.matches ? 150 : 190))));
    const lines = Math.ceil(count / columns);
    const side = (width - 16 - gap * (columns - 1)) / columns;
    const title = 22;
    const height = lines * (side * ratio + title) + gap * (lines - 1) + 16;
    const inner = height - 16;
    return {
      height,
      at: (index) => {
        const column = index % columns, line = Math.floor(index / columns);
        const left = (column * (side + gap)) / (width - 16);
        const top = 1 - (line * (side * ratio + title + gap) + title) / inner;
        return { x: [left, left + side / (width - 16)], y: [Math.max(0, top - (side * ratio) / inner), top] };
      },
    };
  }

  function panelLayout(grid, count, titles, ranges, bold) {
    const layout = { height: grid.height, margin: { l: 8, r: 8, t: 8, b: 8 }, annotations: [], shapes: [] };
    for (let index = 0; index < count; index++) {
      const place = grid.at(index), name = index ? String(index + 1) : "";
      const [N, M] = ranges[index];
      const plain = { showgrid: false, zeroline: false, showticklabels: false, ticks: "", fixedrange: true };
      layout[`xaxis${name}`] = { ...plain, domain: place.x, range: [-0.5, M - 0.5], anchor: `y${name}` };
      layout[`yaxis${name}`] = { ...plain, domain: place.y, range: [N - 0.5, -0.5], anchor: `x${name}` };
      layout.annotations.push({ text: titles[index], xref: "paper", yref: "paper", x: place.x[0], y: place.y[1], xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: narrow.matches ? 10.5 : 12 } });
      if (bold === index) layout.shapes.push({ type: "rect", xref: "paper", yref: "paper", x0: place.x[0], x1: place.x[1], y0: place.y[0], y1: place.y[1], line: { color: style("--text"), width: 3 } });
    }
    return layout;
  }

  let headsLayout = null; // function of the highlighted head

  function drawHeads() {
    const one = layer();
    const all = Array.from({ length: one.heads }, (_, head) => weightsOf(one, head, state.map));
    const signed = isSigned();
    const end = Math.sqrt(largestOf(all));
    const [N, M] = one.shape;
    const width = $("heads").clientWidth || 360;
    const grid = panels(one.heads, 10, Math.max(0.3, Math.min(1.6, N / M)), width);
    const traces = all.map((rows, head) => ({
      type: "heatmap", z: cells(rows), zmin: signed ? -end : 0, zmax: end, colorscale: scaleOf(signed), showscale: false, hoverongaps: false,
      customdata: rows, hovertemplate: `head ${head}<br>query %{y}, key %{x}<br><b>%{customdata:.3f}</b><extra></extra>`,
      xaxis: `x${head ? head + 1 : ""}`, yaxis: `y${head ? head + 1 : ""}`,
    }));
    headsLayout = () => panelLayout(grid, one.heads, all.map((_, head) => `head ${head}`), all.map(() => [N, M]), state.head);
    draw("heads", traces, headsLayout());
    $("heads-title").textContent = `Every head of layer ${one.name}`;
  }

  function markHead() {
    Plotly.relayout($("heads"), { shapes: headsLayout().shapes });
  }

  function drawMasks() {
    const own = model().masks;
    const [N, M] = own[0].shape;
    const made = (kind) => ({
      kind, words: kind, plain: true, shape: [N, M], used: "not in this model",
      bits: Uint8Array.from({ length: N * M }, (_, cell) => (kind === "global" || (cell % M) <= Math.floor(cell / M) + M - N ? 1 : 0)),
    });
    const missing = ["causal", "global"].filter((kind) => !own.some((mask) => mask.kind === kind && mask.plain));
    const all = [...own, ...missing.map(made)];
    const width = Math.min($("masks").clientWidth || 360, 320 * all.length);
    const grid = panels(all.length, 14, 1, width);
    const traces = all.map((mask, index) => ({
      type: "heatmap", zmin: 0, zmax: 1, showscale: false, colorscale: [[0, style("--hidden")], [1, style("--link")]],
      z: Array.from({ length: mask.shape[0] }, (_, n) => Array.from(mask.bits.subarray(n * mask.shape[1], (n + 1) * mask.shape[1]))),
      customdata: Array.from({ length: mask.shape[0] }, (_, n) => Array.from(mask.bits.subarray(n * mask.shape[1], (n + 1) * mask.shape[1]), (bit) => (bit ? "visible" : "hidden"))),
      hovertemplate: "query %{y}, key %{x}<br><b>%{customdata}</b><extra></extra>", xaxis: `x${index ? index + 1 : ""}`, yaxis: `y${index ? index + 1 : ""}`,
    }));
    draw("masks", traces, { ...panelLayout(grid, all.length, all.map((mask) => `<b>${escaped(mask.words)}</b>: ${escaped(mask.used)}`), all.map((mask) => mask.shape), -1), width });
  }

  function drawPositions() {
    const found = model().positions;
    $("positions-part").hidden = !found;
    if (!found) return;
    const [N, d] = found.shape;
    draw("positions", [{
      type: "heatmap", z: Array.from({ length: N }, (_, n) => Array.from(found.values.subarray(n * d, (n + 1) * d))), zmin: -1, zmax: 1,
      colorscale: scaleOf(true), colorbar: { thickness: 12, outlinewidth: 0 }, hovertemplate: "position %{y}, dimension %{x}<br><b>%{z:.3f}</b><extra></extra>",
    }], {
      height: 380, margin: { l: 46, r: 8, t: 8, b: 42 },
      xaxis: { title: { text: "dimension" }, showgrid: false, zeroline: false }, yaxis: { title: { text: "position" }, autorange: "reversed", showgrid: false, zeroline: false },
    });
  }

  function drawCurves() {
    const runs = model().runs;
    const kinds = { loss: "held-out loss", accuracy: "accuracy", train_loss: "training loss" };
    const colours = [style("--link"), `rgb(${style("--positive")})`, style("--soft")];
    const traces = runs.flatMap((run) => Object.keys(kinds).map((kind, index) => {
      const points = run.curve.filter((point) => point[kind] !== null);
      return {
        type: "scatter", mode: points.length > 60 ? "lines" : "lines+markers", name: `${escaped(run.name)}: ${kinds[kind]}`, x: points.map((point) => point.step),
        y: points.map((point) => point[kind]), yaxis: kind === "accuracy" ? "y2" : "y", line: { color: colours[index], dash: kind === "accuracy" ? "dot" : "solid" },
        hovertemplate: `${kinds[kind]}, step %{x}<br><b>%{y:.4f}</b><extra></extra>`,
      };
    })).filter((trace) => trace.x.length);
    $("curves-part").hidden = !traces.length;
    if (!traces.length) return;
    const axis = { gridcolor: style("--line"), zeroline: false };
    draw("curves", traces, {
      height: 380, margin: { l: 56, r: 50, t: 8, b: 42 }, plot_bgcolor: "rgba(0,0,0,0)", showlegend: true, legend: { orientation: "h", y: -0.2 },
      xaxis: { ...axis, title: { text: "optimizer steps" } }, yaxis: { ...axis, title: { text: "loss, nats" } },
      yaxis2: { overlaying: "y", side: "right", range: [0, 1.02], dtick: 0.25, tickmode: "linear", tickformat: ".0%", showgrid: false, title: { text: "accuracy" } },
    });
  }

  // ------------------------------------------------------------------------------------------------ events

  function listen() {
    for (const name of ["model", "layer", "head"]) $(name).addEventListener("change", () => choose({ [name]: Number($(name).value) }));
    for (const input of document.querySelectorAll("input[name=map]")) input.addEventListener("change", () => choose({ map: input.value }));
    for (const input of document.querySelectorAll("input[name=side]")) input.addEventListener("change", () => choose({ side: input.value }));
    for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
    $("measure").addEventListener("change", drawOverview);

    for (const id of ["queries", "keys"]) {
      const field = id === "queries" ? "query" : "key";
      const set = (index) => {
        choose({ [field]: clamp(index, $(id).children.length), ...(isSelf() ? {} : { side: id === "queries" ? "from" : "to" }) });
        for (const input of document.querySelectorAll("input[name=side]")) input.checked = input.value === state.side;
        reveal(id, state[field]);
      };
      $(id).addEventListener("click", (event) => {
        const span = event.target.closest("span");
        if (span) set(Number(span.dataset.index));
      });
      keys(id, (key) => {
        const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[key];
        const ends = { Home: 0, End: $(id).children.length - 1 }[key];
        if (step === undefined && ends === undefined) return false;
        set(ends ?? state[field] + step);
        return true;
      });
    }
    keys("map", (key) => {
      const [N, M] = layer().shape;
      const change = {
        ArrowUp: { query: state.query - 1 }, ArrowDown: { query: state.query + 1 }, ArrowLeft: { key: state.key - 1 },
        ArrowRight: { key: state.key + 1 }, Home: { key: 0 }, End: { key: M - 1 },
        PageUp: { query: state.query - 10 }, PageDown: { query: clamp(state.query + 10, N) },
      }[key];
      if (change) choose(change);
      return Boolean(change);
    });
    keys("overview", (key) => {
      const change = {
        ArrowUp: { layer: state.layer - 1 }, ArrowDown: { layer: state.layer + 1 }, ArrowLeft: { head: state.head - 1 }, ArrowRight: { head: state.head + 1 },
      }[key];
      if (change && "layer" in change) change.layer = clamp(change.layer, model().layers.length);
      if (change) choose(change);
      return Boolean(change);
    });
    $("map").on("plotly_click", (event) => choose({ query: event.points[0].y, key: event.points[0].x }));
    $("overview").on("plotly_click", (event) => {
      const head = event.points[0].x, chosen = event.points[0].y;
      if (head < model().layers[chosen].heads) choose({ layer: chosen, head });
    });
    $("heads").on("plotly_click", (event) => choose({ head: event.points[0].curveNumber }));
    for (const query of [dark, narrow, coarse]) query.addEventListener("change", drawAll);
    let pending = 0, width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return; // a phone's address bar only changes the height
      width = innerWidth;
      clearTimeout(pending);
      pending = setTimeout(drawAll, 150);
    });
  }

  // Scroll within the box, without moving the page.
  function reveal(id, index) {
    const box = $(id), span = box.children[index];
    const above = span.offsetTop - 8, below = span.offsetTop + span.offsetHeight + 8 - box.clientHeight;
    box.scrollTop = Math.max(Math.min(box.scrollTop, above), below);
  }

  function keys(id, act) {
    $(id).addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && act(event.key)) event.preventDefault();
    });
  }

  function drawAll() {
    weights = weightsOf(layer(), state.head, state.map);
    drawMeasureChoice();
    drawControls();
    drawTokens();
    drawMap();
    shade();
    drawOverview();
    drawHeads();
    drawMasks();
    drawPositions();
    drawCurves();
  }

  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack gzip (DecompressionStream); a version of 2023 or later can");
    await loadPlotly();
    for (const one of meta.models) await loadModel(one);
    state.query = layer().shape[0] - 1;
    drawAll();
    reveal("queries", state.query);
    listen();
    $("viewer").setAttribute("aria-busy", "false");
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    $("error").textContent = `The pictures cannot be drawn: ${error.message}.`;
    $("error").hidden = false;
    throw error;
  }
})();
