// The batch picture: a zoomable grid of all tokens, and the documents side by side.

// Paints queries [q0, q1) x keys [k0, k1) into a rectangle of an image. Every pixel row shows the
// query in its middle, exactly: what it attends, coloured by run.
class TilePainter {
  constructor(tiles) {
    this.tiles = tiles;
    this.setPlane(0);
    this.palette = new Palette(tiles.plan.palette);
  }

  setPlane(index) {
    this.index = index;
    this.runs = this.tiles.plane(index);
    this.mask = this.tiles.planes[index].mask;
  }

  // Once before painting: pixels of all devices, dimmed where another one is chosen.
  mixColours() {
    const back = channels(colour('empty'));
    const text = channels(colour('text'));
    const shown = (rgb, device) =>
      chosen.device >= 0 && chosen.device !== device ? mixed(rgb, back, 0.86) : rgb;
    this.fill = this.palette.rgb.map((rgb, d) => pixel(shown(rgb, d)));
    this.edge = this.palette.rgb.map((rgb, d) => pixel(shown(mixed(rgb, text, 0.35), d)));
    this.back = pixel(back);
  }

  paint(image, left, top, width, height, q0, q1, k0, k1) {
    const pixels = new Uint32Array(image.data.buffer);
    const columns = this.columnEdges(width, k0, k1);
    const {start} = this.tiles;
    let lastRow = -1;
    for (let y = 0; y < height; ++y) {
      const query = Math.floor(q0 + (y + 0.5) * (q1 - q0) / height);
      const row = this.tiles.rowAt(query);
      const tall = (start[row + 1] - start[row]) * height / (q1 - q0) > 7;
      const line = {row, onEdge: tall && row !== lastRow && y > 0, at: (top + y) * image.width + left};
      lastRow = row;
      const attended = this.tiles.attended(this.mask, query);
      for (const [begin, end] of attended || [[k0, k1]]) {
        if (end > k0 && begin < k1) {
          this.paintLine(pixels, line, columns, width, k0, (k1 - k0) / width,
                         Math.max(begin, k0), Math.min(end, k1));
        }
      }
    }
  }

  // Fills keys [begin, end) of one pixel row.
  paintLine(pixels, line, columns, width, k0, tokensPerPixel, begin, end) {
    const {first, from, to, device} = this.runs;
    const {start} = this.tiles;
    let run = first[line.row];
    const last = first[line.row + 1];
    let high = last;
    while (run + 1 < high) {  // the last run that begins at or before `begin`
      const middle = (run + high) >> 1;
      if (start[from[middle]] <= begin) run = middle;
      else high = middle;
    }
    for (; run < last && start[from[run]] < end; ++run) {
      const a = (Math.max(begin, start[from[run]]) - k0) / tokensPerPixel;
      const b = (Math.min(end, start[to[run]]) - k0) / tokensPerPixel;
      if (b <= a) continue;
      const x0 = Math.min(Math.round(a), width - 1);
      const x1 = Math.max(Math.min(Math.round(b), width), x0 + 1);
      const fill = this.fill[device[run]];
      const edge = this.edge[device[run]];
      for (let x = x0; x < x1; ++x) {
        pixels[line.at + x] = line.onEdge || (columns !== null && columns[x]) ? edge : fill;
      }
    }
  }

  // Pixels where a column begins, of columns wide enough to have an edge.
  columnEdges(width, k0, k1) {
    const {start, numRows} = this.tiles;
    if ((k1 - k0) / width * 7 > this.widestRow()) return null;
    const edges = new Uint8Array(width);
    for (let c = this.tiles.rowAt(k0); c < numRows && start[c] < k1; ++c) {
      const x = Math.round((start[c] - k0) / (k1 - k0) * width);
      if (x > 0 && x < width && (start[c + 1] - start[c]) * width / (k1 - k0) > 7) edges[x] = 1;
    }
    return edges;
  }

  widestRow() {
    if (this.widest === undefined) {
      this.widest = 0;
      const {start} = this.tiles;
      for (let i = 0; i + 1 < start.length; ++i) {
        this.widest = Math.max(this.widest, start[i + 1] - start[i]);
      }
    }
    return this.widest;
  }

  // The lines of a readout.
  describe(query, key) {
    const {tiles} = this;
    const {plan} = tiles;
    const row = tiles.rowAt(query);
    const column = tiles.rowAt(key);
    const run = tiles.runAt(this.runs, row, column);
    const pairs = tiles.pairs(this.mask, row, column);
    const document = tiles.sequenceAt(query);
    const other = tiles.sequenceAt(key);
    const side = (i) => `${rangeText(tiles.start[i], tiles.start[i + 1])}` +
      (tiles.block[i] >= 0 ? `, block ${tiles.block[i]}` : `, ${counted(tiles.rangesOf[i], 'range')}`) +
      `, owner ${tiles.owner[i]}`;
    const lines = [['document', document === other ? this.documentText(document)
                                                  : `${document} (queries), ${other} (keys)`],
                   ['queries', side(row)], ['keys', side(column)]];
    if (run < 0 || pairs === 0) {
      lines.push(['pairs', 'none attended']);
      return lines;
    }
    if (pairs !== null) {
      const all = (tiles.start[row + 1] - tiles.start[row]) * (tiles.start[column + 1] - tiles.start[column]);
      lines.push(['pairs', `${grouped(pairs)}${pairs === all ? ', all' : ` of ${grouped(all)}`}`]);
    }
    const device = this.runs.device[run];
    lines.push(['device', deviceText(plan, device) +
      (this.runs.share[run] < 100 ? `, about ${Math.round(this.runs.share[run])} % of the pairs` : '')]);
    if (plan.rounds > 1) lines.push(['round', `${tiles.round[row]}`]);
    return lines;
  }

  documentText(document) {
    const {sequence} = this.tiles;
    const [begin, end] = [sequence[document], sequence[document + 1]];
    return `${document}: ${counted(end - begin, 'token')}, ${rangeText(begin, end)}`;
  }
}

const kStrip = 9;  // pixels that owners of tokens take at the edges

class TileGrid extends Picture {
  constructor(painter) {
    const tokens = painter.tiles.plan.tokens;
    super(`Tiles of ${painter.tiles.plan.strategy}: queries down, keys right`,
          new Axis(0, tokens, Math.min(tokens, 16)), new Axis(0, tokens, Math.min(tokens, 16)),
          {left: 40 + 7 * grouped(tokens).length, top: 46, right: 4, bottom: 4});
    this.painter = painter;
    this.tiles = painter.tiles;
  }

  // Square inside the margins.
  heightFor(width) {
    const {left, right, top, bottom} = this.margin;
    return width - left - right + top + bottom;
  }

  draw(context) {
    const {left, top, width, height} = this.inner;
    const scale = this.ratio;
    this.painter.mixColours();
    const image = context.createImageData(Math.round(width * scale), Math.round(height * scale));
    new Uint32Array(image.data.buffer).fill(this.painter.back);
    this.painter.paint(image, 0, 0, image.width, image.height,
                       this.y.lo, this.y.hi, this.x.lo, this.x.hi);
    context.putImageData(image, Math.round(left * scale), Math.round(top * scale));
    this.drawDocuments(context);
    this.drawOwners(context);
    this.drawTicks(context);
  }

  // Squares of the documents that are large enough to see.
  drawDocuments(context) {
    const {left, top, width, height} = this.inner;
    const {sequence, numSequences} = this.tiles;
    if (numSequences < 2) return;
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.strokeStyle = colour('strong-line');
    context.lineWidth = 1;
    const begin = this.tiles.sequenceAt(Math.max(this.x.lo, this.y.lo));
    for (let s = begin; s < numSequences && sequence[s] < Math.min(this.x.hi, this.y.hi); ++s) {
      const x0 = this.atX(sequence[s]);
      const y0 = this.atY(sequence[s]);
      const w = this.atX(sequence[s + 1]) - x0;
      if (w > 6) context.strokeRect(Math.round(x0) + 0.5, Math.round(y0) + 0.5, w, this.atY(sequence[s + 1]) - y0);
    }
    context.restore();
  }

  drawOwners(context) {
    const {left, top, width, height} = this.inner;
    const css = this.painter.palette.css;
    const dim = (owner) => chosen.device >= 0 && chosen.device !== owner ? 0.15 : 1;
    for (let x = 0; x < width; ++x) {
      const owner = this.tiles.owner[this.tiles.rowAt(Math.floor(this.toX(left + x + 0.5)))];
      context.globalAlpha = dim(owner);
      context.fillStyle = css[owner];
      context.fillRect(left + x, top - kStrip - 2, 1, kStrip);
    }
    for (let y = 0; y < height; ++y) {
      const owner = this.tiles.owner[this.tiles.rowAt(Math.floor(this.toY(top + y + 0.5)))];
      context.globalAlpha = dim(owner);
      context.fillStyle = css[owner];
      context.fillRect(left - kStrip - 2, top + y, kStrip, 1);
    }
    context.globalAlpha = 1;
  }

  drawTicks(context) {
    const {left, top, width, height} = this.inner;
    context.fillStyle = colour('muted');
    context.textAlign = 'center';
    for (const t of ticks(this.x.lo, this.x.hi, width / 90)) {
      const text = grouped(t);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(this.atX(t), left + half), left + width - half), top - 21);
    }
    context.textAlign = 'right';
    for (const t of ticks(this.y.lo, this.y.hi, height / 60)) {
      context.fillText(grouped(t), left - kStrip - 5,
                       Math.min(Math.max(this.atY(t), top + 6), top + height - 6));
    }
    this.drawAxisNames(context, 'keys (tokens)', 8, 'queries (tokens)');
  }

  describe(x, y) {
    if (x < this.x.lo || x >= this.x.hi || y < this.y.lo || y >= this.y.hi) return null;
    return this.painter.describe(Math.floor(y), Math.floor(x));
  }

  activate(x, y) {
    if (x < this.x.lo || x >= this.x.hi || y < this.y.lo || y >= this.y.hi) return;
    const {tiles} = this;
    const run = tiles.runAt(this.painter.runs, tiles.rowAt(Math.floor(y)), tiles.rowAt(Math.floor(x)));
    if (run >= 0) chosen.set(this.painter.runs.device[run]);
    else if (chosen.device >= 0) chosen.set(-1);
  }

  enter(x, y) { this.showDocument(this.tiles.sequenceAt(Math.floor(y))); }

  showDocument(document) {
    const {sequence, numSequences} = this.tiles;
    const s = Math.min(Math.max(document, 0), numSequences - 1);
    if (this.documentNumber) this.documentNumber.value = s;
    const pad = 0.02 * (sequence[s + 1] - sequence[s]);
    this.x.set(sequence[s] - pad, sequence[s + 1] + pad);
    this.y.set(sequence[s] - pad, sequence[s + 1] + pad);
    this.moved();
  }

  // To the middle of the next row or column.
  walk(cursor, dx, dy) {
    const step = (at, by, axis) => {
      const {start, numRows} = this.tiles;
      const pixelTokens = axis.span / this.inner.width;
      const row = this.tiles.rowAt(Math.floor(at));
      const next = Math.min(Math.max(row + by, 0), numRows - 1);
      const middle = (start[next] + start[next + 1]) / 2;
      return Math.abs(middle - at) < 2 * pixelTokens ? at + by * 2 * pixelTokens : middle;
    };
    if (dx) cursor.x = step(cursor.x, dx, this.x);
    if (dy) cursor.y = step(cursor.y, dy, this.y);
  }
}

// Every document as a square as wide as it is long, longest first: areas are about work.
class DocumentOverview extends Picture {
  constructor(painter, grid) {
    super(`Documents of the batch, longest first; Enter shows one in the grid`,
          new Axis(0, 1, 1), new Axis(0, 1, 1), {left: 0, top: 0, right: 0, bottom: 0});
    this.painter = painter;
    this.tiles = painter.tiles;
    this.grid = grid;
    const {sequence} = this.tiles;
    this.order = Array.from({length: this.tiles.numSequences}, (_, i) => i);
    this.order.sort((a, b) => (sequence[b + 1] - sequence[b]) - (sequence[a + 1] - sequence[a]) || a - b);
  }

  heightFor(width) {
    this.layOut(width);
    this.x = new Axis(0, width, width);
    this.y = new Axis(0, this.used, this.used);
    return this.used;
  }

  // The largest scale at which all documents fit into rows of the width and a sensible height.
  layOut(width) {
    const tallest = Math.min(460, Math.max(240, innerHeight - 200));
    const longest = this.length(this.order[0]);
    let low = 0;
    let high = Math.min(width, tallest, 320) / longest;
    if (this.place(high, width) > tallest) {
      for (let i = 0; i < 24; ++i) {
        const middle = (low + high) / 2;
        if (this.place(middle, width) > tallest) high = middle;
        else low = middle;
      }
      this.used = Math.min(this.place(low, width), 4000);
    } else {
      this.used = this.place(high, width);
    }
  }

  length(s) { return this.tiles.sequence[s + 1] - this.tiles.sequence[s]; }

  // Places all squares; returns the height they need.
  place(scale, width) {
    this.squares = [];
    let x = 0;
    let y = 0;
    let tallest = 0;
    for (const s of this.order) {
      const side = Math.max(2, Math.min(Math.floor(this.length(s) * scale), width));
      const gap = side > 24 ? 4 : side > 6 ? 2 : 1;
      if (x + side > width) {
        x = 0;
        y += tallest + gap;
        tallest = 0;
      }
      tallest = Math.max(tallest, side);
      this.squares.push({s, x, y, side});
      x += side + gap;
    }
    return y + tallest;
  }

  draw(context) {
    const scale = this.ratio;
    const {sequence} = this.tiles;
    this.painter.mixColours();
    const image = context.createImageData(this.canvas.width, this.canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    const plate = pixel(channels(colour('line')));
    for (const {s, x, y, side} of this.squares) {
      const left = Math.round(x * scale);
      const top = Math.round(y * scale);
      const size = Math.min(Math.max(1, Math.round(side * scale)), image.width - left);
      if (top + size > image.height) break;
      for (let line = top; line < top + size; ++line) {
        pixels.fill(plate, line * image.width + left, line * image.width + left + size);
      }
      this.painter.paint(image, left, top, size, size,
                         sequence[s], sequence[s + 1], sequence[s], sequence[s + 1]);
    }
    context.putImageData(image, 0, 0);
  }

  squareAt(x, y) {
    return this.squares.find((q) => q.x <= x && x < q.x + q.side + 1 && q.y <= y && y < q.y + q.side + 1);
  }

  describe(x, y) {
    const square = this.squareAt(x, y);
    if (!square) return null;
    const devices = this.devicesOf(square.s);
    return [['document', this.painter.documentText(square.s)],
            ['computed by', devices.length > 8 ? counted(devices.length, 'device')
                                               : `device ${devices.join(', ')}`],
            ['', 'Click to see it in the grid']];
  }

  devicesOf(document) {
    const {sequence} = this.tiles;
    const {first, device} = this.painter.runs;
    const found = new Set();
    const last = this.tiles.rowAt(sequence[document + 1] - 1);
    for (let row = this.tiles.rowAt(sequence[document]); row <= last; ++row) {
      for (let i = first[row]; i < first[row + 1]; ++i) found.add(device[i]);
    }
    return [...found].sort((a, b) => a - b);
  }

  zoom() {}
  panBy() {}
  activate(x, y) {
    const square = this.squareAt(x, y);
    if (square) this.grid.showDocument(square.s);
  }
  enter(x, y) { this.activate(x, y); }

  walk(cursor, dx, dy) {
    const here = this.squareAt(cursor.x, cursor.y) || this.squares[0];
    const at = this.squares.indexOf(here);
    let next = this.squares[Math.min(Math.max(at + dx, 0), this.squares.length - 1)];
    if (dy) {
      const rows = [...new Set(this.squares.map((q) => q.y))];
      const row = rows[Math.min(Math.max(rows.indexOf(here.y) + dy, 0), rows.length - 1)];
      next = this.squares.filter((q) => q.y === row)
        .reduce((a, b) => Math.abs(b.x - here.x) < Math.abs(a.x - here.x) ? b : a);
    }
    cursor.x = next.x + next.side / 2;
    cursor.y = next.y + next.side / 2;
  }
}

// Swatches of all devices; a click shows one apart.
function deviceLegend(plan) {
  const palette = new Palette(plan.palette);
  const legend = element('div', {class: plan.devices > 128 ? 'devices-legend many' : 'devices-legend'});
  for (let node = 0; node * plan.devices_per_node < plan.devices; ++node) {
    const row = element('div', {}, element('span', {}, `node ${node}`));
    for (let d = node * plan.devices_per_node; d < (node + 1) * plan.devices_per_node; ++d) {
      const swatch = element('b', {title: `device ${d}`, onclick: () => chosen.set(d),
                                   class: palette.isLight(d) ? 'light' : 'dark'}, `${d}`);
      swatch.style.background = palette.css[d];
      chosen.listeners.push(() => swatch.classList.toggle('chosen', chosen.device === d));
      row.append(swatch);
    }
    legend.append(row);
  }
  return legend;
}
