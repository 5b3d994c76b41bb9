// Reactions to clicks, keys and changes of the window, and the start of the page.

function listen() {
  for (const name of ["model", "layer", "head"]) $(name).addEventListener("change", () => choose({ [name]: Number($(name).value) }));
  $("scale").addEventListener("change", () => choose({ scale: $("scale").value }));
  $("first").addEventListener("change", () => choose({ first: !$("first").checked }));
  addEventListener("hashchange", () => choose(remembered()));
  for (const input of document.querySelectorAll("input[name=map]")) input.addEventListener("change", () => choose({ map: input.value }));
  for (const input of document.querySelectorAll("input[name=side]")) input.addEventListener("change", () => choose({ side: input.value }));
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  $("measure").addEventListener("change", drawOverview);
  for (const button of document.querySelectorAll("button[data-plot]")) button.addEventListener("click", () => save(button.dataset.plot, button.dataset.format));

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
  const moves = { ArrowUp: ["layer", -1], ArrowDown: ["layer", 1], ArrowLeft: ["head", -1], ArrowRight: ["head", 1] };
  const turned = { ArrowUp: ["head", -1], ArrowDown: ["head", 1], ArrowLeft: ["layer", -1], ArrowRight: ["layer", 1] };
  for (const id of ["overview", "grid"]) {
    keys(id, (key) => {
      const [field, step] = (id === "grid" && grid.isAcross ? turned : moves)[key] ?? [];
      if (!field) return false;
      const count = field === "layer" ? model().layers.length : layer().heads;
      const from = field === "head" && state.head === MEAN ? count : state[field]; // the mean stands behind the last head
      const next = clamp(from + step, id === "grid" && field === "head" ? count + 1 : count);
      choose({ [field]: field === "head" && next === count ? MEAN : next });
      return true;
    });
  }
  const under = (event) => grid.at(event.offsetX, event.offsetY);
  $("grid").addEventListener("mousemove", (event) => {
    const found = under(event);
    $("grid").title = found ? `layer ${model().layers[found.layer].name}, ${headName(found.head)}` : "";
  });
  $("grid").addEventListener("click", (event) => {
    const found = under(event);
    if (!found) return;
    choose(found);
    $("map-part").scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  });
  $("map").on("plotly_click", (event) => choose({ query: event.points[0].y, key: event.points[0].x }));
  $("overview").on("plotly_click", (event) => {
    const head = event.points[0].x, chosen = event.points[0].y;
    const one = measured()[chosen];
    if (head < one.heads) choose({ layer: model().layers.indexOf(one), head });
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

// A plot as a file, on the page's background; a PNG has two pixels for one on the screen.
function save(id, format) {
  const { data, layout } = $(id);
  const width = layout.width ?? $(id).clientWidth;
  const own = `-layer${layer().name.match(/\w+/g).join("-")}`;
  const place = { map: `${own}-${state.head === MEAN ? "mean" : `head${state.head}`}`, heads: own }[id] ?? "";
  Plotly.downloadImage(
    { data, layout: { ...layout, width, paper_bgcolor: style("--page") } },
    { format, width, height: layout.height, scale: format === "png" ? 2 : 1, filename: `attention-${id}${place}` },
  );
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
  weights = shownWeights(layer(), state.head);
  drawMeasureChoice();
  drawControls();
  drawTokens();
  drawMap();
  drawBeside();
  shade();
  drawGrid();
  drawOverview();
  drawHeads();
  drawMasks();
  drawPositions();
  drawCurves();
}

async function start() {
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack gzip (DecompressionStream); a version of 2023 or later can");
    await loadPlotly();
    for (const one of meta.models) await loadModel(one);
    Object.assign(state, model().chosen);
    Object.assign(state, { query: layer().shape[0] - 1 }, remembered());
    state.query = clamp(state.query, layer().shape[0]);
    state.key = clamp(state.key, layer().shape[1]);
    drawAll();
    remember();
    reveal("queries", state.query);
    listen();
    $("viewer").setAttribute("aria-busy", "false");
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    $("error").textContent = `The pictures cannot be drawn: ${error.message}.`;
    $("error").hidden = false;
    throw error;
  }
}

start();
