// Puts the pictures into their places.

const placesOf = (name) => [...document.querySelectorAll(`[data-picture="${name}"]`)]
  .map((place) => ({place, plan: data.plans[Number(place.dataset.plan)]}));
const controlsOf = (name) => document.querySelector(`[data-controls="${name}"]`);

function link(all) {
  for (const picture of all) picture.linked = all.filter((other) => other !== picture);
}

// ------------------------------------------------------------------------------ batch and mask

// The grid's part of the batch in words.
function placeText(grid) {
  const {tiles} = grid;
  const {x, y} = grid;
  if (x.span >= x.max && y.span >= y.max) return `All ${grouped(tiles.plan.tokens)} tokens. ${zoomHint}`;
  const document = tiles.sequenceAt(Math.floor((y.lo + y.hi) / 2));
  const where = tiles.numSequences > 1
    ? `, document ${document} (0 … ${tiles.numSequences - 1})` : '';
  return `Queries ${rangeText(Math.floor(y.lo), Math.ceil(y.hi))}, ` +
    `keys ${rangeText(Math.floor(x.lo), Math.ceil(x.hi))}${where}. ${zoomHint}`;
}

function documentTools(grid) {
  const {tiles} = grid;
  if (tiles.numSequences < 2) return [];
  const number = element('input', {type: 'number', min: 0, max: tiles.numSequences - 1, value: 0});
  const go = (document) => grid.showDocument(document);
  number.addEventListener('change', () => go(Number(number.value)));
  const button = (text, title, by) => element('button',
    {type: 'button', title, 'aria-label': title, onclick: () => go(Number(number.value) + by)}, text);
  grid.documentNumber = number;
  return [button('◀', 'Previous document', -1), element('label', {}, 'document', number),
          button('▶', 'Next document', 1)];
}

function buildTiles() {
  const grids = [];
  for (const {place, plan} of placesOf('tiles')) {
    if (!plan.tiles.planes || !plan.tiles.planes.length) continue;
    const tiles = new TileData(plan);
    const painter = new TilePainter(tiles);
    const grid = new TileGrid(painter);
    grid.canvas.classList.add('grid');
    const caption = element('figcaption', {});
    const drawn = grid.draw.bind(grid);
    grid.draw = (context) => {
      drawn(context);
      caption.textContent = placeText(grid);
    };
    const left = element('div', {},
      element('figure', {}, grid.tools(...documentTools(grid)), grid.canvas, caption));
    const right = element('div', {});
    if (tiles.numSequences > 1) {
      const overview = new DocumentOverview(painter, grid);
      grid.overview = overview;
      right.append(figure(`${grouped(tiles.numSequences)} documents, longest first, each as a ` +
        'square of its tokens. Click one to see it in the grid.',
        element('div', {class: 'overview'}, overview.canvas)));
    }
    right.append(figure('Devices. Click one to see it apart, in all pictures.', deviceLegend(plan)));
    place.append(element('div', {class: 'split'}, left, right));
    grids.push(grid);
  }
  if (!grids.length) return grids;
  tileControls(grids);
  const [first, second] = grids;
  if (second && first.tiles.plan.sequences === second.tiles.plan.sequences) link(grids);
  for (const grid of grids) {
    if (grid.tiles.numSequences <= 12) continue;
    grid.showDocument(grid.overview.order[0]);
  }
  return grids;
}

// Direction, mask, head group, device: for all plans at once.
function tileControls(grids) {
  const planes = grids.flatMap((grid) => grid.tiles.planes);
  const unique = (of) => [...new Set(planes.map(of))];
  const directions = unique((p) => p.direction);
  const masks = data.plans[0].masks;
  const groups = unique((p) => p.group);
  const wanted = {direction: directions[0], mask: 0, group: 0};
  const apply = () => {
    for (const grid of grids) {
      const own = grid.tiles.planes;
      const found = own.findIndex((p) => p.direction === wanted.direction &&
        p.mask === wanted.mask && p.group === wanted.group);
      const fallback = own.findIndex((p) => p.direction === wanted.direction && p.mask === wanted.mask);
      grid.painter.setPlane(Math.max(0, found >= 0 ? found : fallback));
      grid.redraw();
      if (grid.overview) grid.overview.redraw();
    }
  };
  const controls = controlsOf('tiles');
  if (directions.length > 1) {
    controls.append(choice('direction', directions, (i) => { wanted.direction = directions[i]; apply(); }));
  }
  if (masks.length > 1) {
    controls.append(choice('mask', masks, (i) => { wanted.mask = i; apply(); }));
  }
  if (groups.length > 1) {
    controls.append(choice('head group', groups.map(String), (i) => { wanted.group = groups[i]; apply(); }));
  }
  const most = Math.max(...data.plans.map((plan) => plan.devices)) - 1;
  const device = element('input', {type: 'number', min: 0, max: most, placeholder: 'all'});
  device.addEventListener('change', () => {
    const number = device.value === '' ? -1 : Math.min(Math.max(Math.round(Number(device.value)), 0), most);
    if (number !== chosen.device) chosen.set(number < 0 ? chosen.device : number);
  });
  chosen.listeners.push(() => { device.value = chosen.device < 0 ? '' : chosen.device; });
  controls.append(element('label', {}, 'show device', device));
}

// ------------------------------------------------------------------------------------- others

// Plans share the longest plan's scale and move together, or each fills its width.
function setOwnScales(timelines, own) {
  const longest = Math.max(...timelines.map(({timeline}) => timeline.end), 1e-3);
  for (const picture of timelines) {
    const end = own ? Math.max(picture.timeline.end, 1e-3) : longest;
    picture.linked = [];
    picture.x = new Axis(0, end, end / 20000);
    picture.redraw();
  }
  const alike = timelines.length === 2 && timelines[0].plan.devices === timelines[1].plan.devices;
  if (!own && alike) link(timelines);
}

function ownScaleSwitch(timelines) {
  const box = element('input', {type: 'checkbox'});
  box.addEventListener('change', () => setOwnScales(timelines, box.checked));
  return element('label', {}, box, 'a scale of its own for each plan');
}

function buildTimelines() {
  const places = placesOf('timeline').map(({place, plan}) => ({place, timeline: new TimelineData(plan)}));
  const longest = Math.max(...places.map(({timeline}) => timeline.end), 1e-3);
  const timelines = places.map(({place, timeline}) => {
    const picture = new Timeline(timeline, longest);
    const rows = (text, title, factor) => element('button',
      {type: 'button', title, 'aria-label': title,
       onclick: () => picture.zoom(factor, 0, (picture.y.lo + picture.y.hi) / 2, true)}, text);
    place.append(element('figure', {},
      picture.tools(rows('Taller rows', 'Show fewer devices', 1.6),
                    rows('Flatter rows', 'Show more devices', 1 / 1.6)),
      picture.canvas,
      element('figcaption', {}, `${zoomHint} Shift + wheel: taller rows. Click a row to see its device apart.`)));
    return picture;
  });
  controlsOf('timeline').append(criticalPathSwitch());
  if (timelines.length === 2) controlsOf('timeline').append(ownScaleSwitch(timelines));
  controlsOf('timeline').append(timelineLegend());
  setOwnScales(timelines, false);
  return timelines;
}

function buildTraffic() {
  const matrices = [];
  for (const {place, plan} of placesOf('traffic')) {
    if (!plan.traffic.side) continue;
    const matrix = new TrafficMatrix(plan);
    matrix.canvas.classList.add('matrix');
    place.append(element('figure', {}, matrix.tools(), matrix.canvas, matrix.legend()));
    matrices.push(matrix);
  }
  const names = ['forward', 'backward', 'both'];
  const show = (i) => {
    for (const matrix of matrices) {
      matrix.show(names[i]);
      matrix.updateLegend();
    }
  };
  if (matrices.length) controlsOf('traffic').append(choice('direction', names, show));
  return matrices;
}

function buildDevices() {
  for (const {place, plan} of placesOf('devices')) place.append(deviceCharts(plan));
}

// Exact values of the tables' rounded numbers.
for (const number of document.querySelectorAll('table data')) number.title = number.value;

const grids = buildTiles();
const timelines = buildTimelines();
const matrices = buildTraffic();
buildDevices();
for (const picture of pictures) picture.resize();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const picture of pictures) picture.redraw();
});
// For scripts that examine the page.
window.contextileReport = {grids, timelines, matrices, pictures, chosen, pairsIn, criticalPath, pictureSvg};
document.documentElement.dataset.ready = 'yes';
