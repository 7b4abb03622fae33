// Pictures as files: PNG as they stand, SVG by a context that writes what is drawn.

const kSvgScale = 2;  // pixels of an image in an SVG, per unit of its size

function svgText(text) {
  return String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
}

// The methods and properties of a canvas's context that pictures use.
class SvgContext {
  constructor(width, height) {
    Object.assign(this, {width, height, parts: [], stack: [], path: '', box: [], place: '', clipped: [],
      fillStyle: '#000', strokeStyle: '#000', lineWidth: 1, globalAlpha: 1, font: '',
      textAlign: 'start', textBaseline: 'middle'});
    this.measure = document.createElement('canvas').getContext('2d');
  }

  save() {
    const {place, clipped, fillStyle, strokeStyle, lineWidth, globalAlpha, textAlign} = this;
    this.stack.push({place, clipped, fillStyle, strokeStyle, lineWidth, globalAlpha, textAlign});
  }
  restore() { Object.assign(this, this.stack.pop()); }
  translate(x, y) { this.place += `translate(${x} ${y}) `; }
  rotate(angle) { this.place += `rotate(${angle * 180 / Math.PI}) `; }

  beginPath() { this.path = ''; }
  moveTo(x, y) { this.path += `M${x} ${y}`; }
  lineTo(x, y) { this.path += `L${x} ${y}`; }
  // Pictures clip to rectangles only, which an inner <svg> does.
  rect(...box) { this.box = box; }
  clip() {
    const [x, y, w, h] = this.box;
    const open = `<svg x="${x}" y="${y}" width="${w}" height="${h}" viewBox="${x} ${y} ${w} ${h}">`;
    this.clipped = [...this.clipped, open];
  }

  add(shape, look) {
    const place = this.place && ` transform="${this.place.trim()}"`;
    const alpha = this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : '';
    // A clip is in the coordinates of the picture, so it is around what is placed.
    this.parts.push(this.clipped.join('') + shape(`${place}${alpha}${look}`) +
      '</svg>'.repeat(this.clipped.length));
  }
  get filled() { return ` fill="${svgText(this.fillStyle)}"`; }
  get stroked() { return ` fill="none" stroke="${svgText(this.strokeStyle)}" stroke-width="${this.lineWidth}"`; }
  addBox(x, y, w, h, look) {
    this.add((all) => `<rect x="${x}" y="${y}" width="${Math.max(w, 0)}" height="${Math.max(h, 0)}"${all}/>`, look);
  }
  fillRect(x, y, w, h) { this.addBox(x, y, w, h, this.filled); }
  strokeRect(x, y, w, h) { this.addBox(x, y, w, h, this.stroked); }
  clearRect() {}
  stroke(path) {
    const d = path ? path.text : this.path;
    this.add((all) => `<path d="${d}"${all}/>`, this.stroked);
  }
  fillText(text, x, y) {
    const anchor = {center: 'middle', right: 'end', end: 'end'}[this.textAlign] || 'start';
    this.add((all) => `<text x="${x}" y="${y}" text-anchor="${anchor}" dominant-baseline="central"${all}>` +
      `${svgText(text)}</text>`, this.filled);
  }
  measureText(text) {
    this.measure.font = kPictureFont;
    return this.measure.measureText(text);
  }

  createImageData(width, height) { return this.measure.createImageData(width, height); }
  // As a canvas does, in pixels and whatever the transform.
  putImageData(pixels, x, y) {
    const canvas = document.createElement('canvas');
    Object.assign(canvas, {width: pixels.width, height: pixels.height});
    canvas.getContext('2d').putImageData(pixels, 0, 0);
    this.parts.push(`<image x="${x / kSvgScale}" y="${y / kSvgScale}" width="${pixels.width / kSvgScale}" ` +
      `height="${pixels.height / kSvgScale}" href=${JSON.stringify(canvas.toDataURL())}/>`);
  }

  text(background) {
    const inner = element('div', {});
    inner.innerHTML = '<svg></svg>';
    return `<svg xmlns="${inner.firstChild.namespaceURI}" width="${this.width}" height="${this.height}" ` +
      `viewBox="0 0 ${this.width} ${this.height}" style="font:${svgText(kPictureFont).replace(/&#34;/g, "'")}">` +
      `<rect width="100%" height="100%" fill="${background}"/>${this.parts.join('')}</svg>`;
  }
}

// A path that a canvas strokes, and its text for an SVG.
class NamedPath extends Path2D {
  constructor() {
    super();
    this.text = '';
  }
  moveTo(x, y) {
    super.moveTo(x, y);
    this.text += `M${x} ${y}`;
  }
  lineTo(x, y) {
    super.lineTo(x, y);
    this.text += `L${x} ${y}`;
  }
}

function pictureSvg(picture) {
  const context = new SvgContext(picture.width, picture.height);
  const {ratio} = picture;
  picture.ratio = kSvgScale;
  try {
    picture.draw(context);
  } finally {
    picture.ratio = ratio;
  }
  return context.text(colour('back'));
}

function saveFile(picture, ending, blob) {
  const name = picture.canvas.getAttribute('aria-label').replace(/[^\w]+/g, '-').slice(0, 60);
  const url = URL.createObjectURL(blob);
  element('a', {href: url, download: `${name}.${ending}`}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// On the page's background: a picture of dark colours is not for a white page.
function pictureCanvas(picture) {
  const {canvas} = picture;
  const copy = document.createElement('canvas');
  Object.assign(copy, {width: canvas.width, height: canvas.height});
  const context = copy.getContext('2d');
  context.fillStyle = colour('back');
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  return copy;
}

function saveButtons(picture) {
  const button = (text, onclick) => element('button',
    {type: 'button', title: `Save as ${text}`, 'aria-label': `Save as ${text}`, onclick}, text);
  return [
    button('PNG', () => pictureCanvas(picture).toBlob((blob) => saveFile(picture, 'png', blob))),
    button('SVG', () => saveFile(picture, 'svg', new Blob([pictureSvg(picture)], {type: 'image/svg+xml'}))),
  ];
}
