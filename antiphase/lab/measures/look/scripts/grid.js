// A small map for each layer and head, drawn on a canvas: hundreds of plots would be slow.

const GAP = 3;
const LARGEST = 72, SMALLEST = 18; // pixels of a small map's side
let grid = null; // where the small maps lie
let drawing = 0; // number of the newest drawing; an older one stops

const channels = (name) => {
  const text = style(name);
  return text.startsWith("#") ? [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) : text.split(",").map(Number);
};

function layoutGrid() {
  const layers = model().layers;
  const heads = Math.max(...layers.map((one) => one.heads)) + 1; // and their mean
  // layers run along the longer side of the screen
  const isAcross = narrow.matches ? layers.length < heads : layers.length >= heads && layers.every((one) => one.queries === one.keys);
  const context = $("grid").getContext("2d");
  context.font = "11px system-ui, sans-serif";
  const names = isAcross ? ["mean"] : layers.map((one) => one.name);
  const left = 10 + Math.max(...names.map((name) => context.measureText(name).width));
  const [across, down] = isAcross ? [layers.length, heads] : [heads, layers.length];
  const side = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(($("grid-box").clientWidth - left) / across) - GAP));
  const top = 18;
  const place = (index, head) => {
    const last = head === MEAN ? heads - 1 : head;
    const [column, row] = isAcross ? [index, last] : [last, index];
    return { x: left + column * (side + GAP), y: top + row * (side + GAP) };
  };
  const at = (x, y) => {
    const column = Math.floor((x - left) / (side + GAP)), row = Math.floor((y - top) / (side + GAP));
    const [index, last] = isAcross ? [column, row] : [row, column];
    const head = last === heads - 1 ? MEAN : last;
    return column >= 0 && row >= 0 && layers[index] && head < layers[index].heads && last < heads ? { layer: index, head } : null;
  };
  return { heads, isAcross, left, top, side, place, at, width: left + across * (side + GAP), height: top + down * (side + GAP) };
}

// The strongest weight of each block of a map as an image.
function thumbnail(one, rows, side) {
  const [N, M] = one.shape;
  const step = Math.max(1, Math.ceil(Math.max(N, M) / side));
  const image = new ImageData(Math.ceil(M / step), Math.ceil(N / step));
  const colours = { none: channels("--none"), hidden: channels("--hidden"), positive: channels("--positive"), negative: channels("--negative") };
  const end = tone(1);
  for (let row = 0; row < image.height; row++) {
    for (let column = 0; column < image.width; column++) {
      let strongest = 0, isSeen = false;
      for (let n = row * step; n < Math.min(N, (row + 1) * step); n++) {
        for (let m = column * step; m < Math.min(M, (column + 1) * step); m++) {
          if (!isVisible(one, n, m)) continue;
          isSeen = true;
          if (Math.abs(rows[n][m]) > Math.abs(strongest)) strongest = rows[n][m];
        }
      }
      const full = strongest < 0 ? colours.negative : colours.positive;
      const share = Math.min(1, Math.abs(tone(strongest)) / end);
      const base = isSeen ? colours.none : colours.hidden;
      const pixel = base.map((value, index) => value + share * (full[index] - value));
      image.data.set([...pixel, 255], 4 * (row * image.width + column));
    }
  }
  return image;
}

async function drawGrid() {
  const own = ++drawing;
  grid = layoutGrid();
  const canvas = $("grid"), scale = devicePixelRatio || 1, context = canvas.getContext("2d");
  canvas.dataset.drawn = "";
  canvas.width = Math.round(grid.width * scale);
  canvas.height = Math.round(grid.height * scale);
  canvas.style.width = `${grid.width}px`;
  canvas.style.height = `${grid.height}px`;
  markGrid();
  const [columns, rows] = grid.isAcross ? ["layers", "heads"] : ["heads", "layers"];
  $("grid-said").textContent = `Columns are ${columns}, rows are ${rows}. In each small map, queries go downwards and keys to the right, on one scale up to 1. Choose one to see it large.`;
  context.scale(scale, scale);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = style("--soft");
  context.textAlign = "right";
  context.textBaseline = "middle";
  const layers = model().layers;
  const across = Array.from({ length: grid.heads }, (_, head) => (head === grid.heads - 1 ? "mean" : String(head)));
  const [above, beside] = grid.isAcross ? [layers.map((one) => one.name), across] : [across, layers.map((one) => one.name)];
  beside.forEach((name, row) => context.fillText(name, grid.left - 6, grid.top + row * (grid.side + GAP) + grid.side / 2));
  context.textAlign = "center";
  above.forEach((name, column) => context.fillText(name, grid.left + column * (grid.side + GAP) + grid.side / 2, 8));
  context.imageSmoothingEnabled = false;
  const small = document.createElement("canvas");
  for (const [index, one] of layers.entries()) {
    await new Promise(requestAnimationFrame); // the page stays responsive
    if (own !== drawing) return;
    for (const head of [...Array(one.heads).keys(), MEAN]) {
      const image = thumbnail(one, shownWeights(one, head), Math.round(grid.side * scale));
      small.width = image.width;
      small.height = image.height;
      small.getContext("2d").putImageData(image, 0, 0);
      const { x, y } = grid.place(index, head);
      const long = Math.max(image.width, image.height);
      context.drawImage(small, x, y, (grid.side * image.width) / long, (grid.side * image.height) / long);
    }
  }
  canvas.dataset.drawn = "yes";
}

function markGrid() {
  const { x, y } = grid.place(state.layer, state.head);
  Object.assign($("grid-mark").style, { left: `${x - 2}px`, top: `${y - 2}px`, width: `${grid.side + 4}px`, height: `${grid.side + 4}px` });
}
