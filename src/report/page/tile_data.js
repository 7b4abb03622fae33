// The batch picture's data, as src/report/html_tiles.h describes it.

class TileData {
  constructor(plan) {
    this.plan = plan;
    this.merged = plan.tiles.merged;
    this.readSequences();
    this.readRows();
    this.planes = plan.tiles.planes || [];
    this.bands = plan.tiles.bands;
    this.readPlanes = new Map();
    this.readBands = new Map();
  }

  readSequences() {
    const packed = new VarintText(this.plan.sequences);
    this.sequence = [0];  // first tokens, then the end
    while (!packed.done) this.sequence.push(this.sequence.at(-1) + packed.number());
    this.numSequences = this.sequence.length - 1;
  }

  readRows() {
    const packed = new VarintText(this.plan.tiles.ranges || '');
    this.start = [0];
    this.rangesOf = [];
    this.block = [];
    this.owner = [];
    this.round = [];
    let block = 0;
    let owner = 0;
    let round = 0;
    while (!packed.done) {
      this.start.push(this.start.at(-1) + packed.number());
      const ranges = packed.number();
      if (ranges === 1) block += packed.signed();
      owner += packed.signed();
      round += packed.signed();
      this.rangesOf.push(ranges);
      this.block.push(ranges === 1 ? block : -1);
      this.owner.push(owner);
      this.round.push(round);
    }
    this.numRows = this.rangesOf.length;
  }

  // Runs of a plane: of row r the runs first[r] … first[r + 1] - 1, columns from … to - 1.
  plane(index) {
    while (this.planes[index].same_as !== undefined) index = this.planes[index].same_as;
    if (this.readPlanes.has(index)) return this.readPlanes.get(index);
    const packed = new VarintText(this.planes[index].runs);
    const runs = {first: [0], from: [], to: [], device: [], share: []};
    let device = 0;
    while (!packed.done) {
      let column = 0;
      for (let left = packed.number(); left > 0; --left) {
        column += packed.number();
        runs.from.push(column);
        column += packed.number();
        runs.to.push(column);
        device += packed.signed();
        runs.device.push(device);
        runs.share.push(this.merged ? packed.number() : 100);
      }
      runs.first.push(runs.from.length);
    }
    this.readPlanes.set(index, runs);
    return runs;
  }

  // Bands of a mask and, by row, which of them meet its queries; null when the page has none.
  maskBands(mask) {
    if (this.bands[mask] === null) return null;
    if (this.readBands.has(mask)) return this.readBands.get(mask);
    const packed = new VarintText(this.bands[mask]);
    const bands = [];
    let begin = 0;
    while (!packed.done) {
      begin += packed.number();
      const q1 = begin + packed.number();
      const k0 = begin + packed.signed();
      const k1 = k0 + packed.number();
      const bounds = packed.number();
      bands.push({q0: begin, q1, k0, k1, lo: bounds & 1 ? packed.signed() : -Infinity,
                  hi: bounds & 2 ? packed.signed() : Infinity});
    }
    const ofRow = [];
    let next = 0;
    let active = [];
    for (let row = 0; row < this.numRows; ++row) {
      active = active.filter((b) => b.q1 > this.start[row]);
      while (next < bands.length && bands[next].q0 < this.start[row + 1]) active.push(bands[next++]);
      ofRow.push(active.filter((b) => b.q1 > this.start[row]).sort((a, b) => a.k0 - b.k0));
    }
    const found = {all: bands, ofRow};
    this.readBands.set(mask, found);
    return found;
  }

  rowAt(token) { return lastAtMost(this.start, token, this.numRows); }
  sequenceAt(token) { return lastAtMost(this.sequence, token, this.numSequences); }

  // The run of a row that holds the column, or -1.
  runAt(runs, row, column) {
    for (let i = runs.first[row]; i < runs.first[row + 1]; ++i) {
      if (runs.from[i] <= column && column < runs.to[i]) return i;
    }
    return -1;
  }

  // What a query attends, as [first key, end) in ascending order.
  attended(mask, query) {
    const bands = this.maskBands(mask);
    if (bands === null) return null;
    const ranges = [];
    for (const b of bands.ofRow[this.rowAt(query)]) {
      if (query < b.q0 || query >= b.q1) continue;
      const begin = Math.max(b.k0, query + b.lo);
      const end = Math.min(b.k1, query + b.hi + 1);
      if (begin < end) ranges.push([begin, end]);
    }
    return ranges.sort((a, b) => a[0] - b[0]);
  }

  // Attended pairs where a row and a column meet; null when the page has no bands.
  pairs(mask, row, column) {
    const bands = this.maskBands(mask);
    if (bands === null) return null;
    let pairs = 0;
    for (const b of bands.ofRow[row]) {
      pairs += pairsIn(b, Math.max(b.q0, this.start[row]), Math.min(b.q1, this.start[row + 1]),
                       Math.max(b.k0, this.start[column]), Math.min(b.k1, this.start[column + 1]));
    }
    return pairs;
  }
}

// The largest i < count with list[i] <= value.
function lastAtMost(list, value, count) {
  let low = 0;
  let high = count;
  while (low + 1 < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle;
    else high = middle;
  }
  return low;
}

// Pairs of a band in [q0, q1) x [k0, k1): for every query the keys up to its highest one, less those
// below its lowest one.
function pairsIn(band, q0, q1, k0, k1) {
  if (q0 >= q1 || k0 >= k1) return 0;
  return keysBelow(band.hi + 1, q0, q1, k0, k1) - keysBelow(band.lo, q0, q1, k0, k1);
}

// Sum over q in [q0, q1) of how many keys of [k0, k1) are below q + shift.
function keysBelow(shift, q0, q1, k0, k1) {
  if (shift === Infinity) return (q1 - q0) * (k1 - k0);
  if (shift === -Infinity) return 0;
  const firstSome = Math.min(Math.max(k0 - shift + 1, q0), q1);  // from here on at least one
  const firstAll = Math.min(Math.max(k1 - shift, firstSome), q1);
  const some = firstAll - firstSome;
  return some * (2 * (firstSome + shift - k0) + some - 1) / 2 + (q1 - firstAll) * (k1 - k0);
}
