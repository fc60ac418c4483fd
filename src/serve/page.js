// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// The page of disttrain serve.  A side (A, B) is a map from key to value, nothing else: controls, command line, address
// and answers derive from it.  While something moves, quick answers are asked for, one at a time and always about the
// newest setting; once it rests, the thorough one.
'use strict';

const REST_MS = 350;
const client = Array.from(crypto.getRandomValues(new Uint8Array(7)), b => b.toString(16).padStart(2, '0')).join('');
const $ = (selector, at = document) => at.querySelector(selector);
let desk; // keys.json

function element(name, properties = {}, ...children) {
  const e = Object.assign(document.createElement(name), properties);
  e.append(...children);
  return e;
}

// ---- numbers for people ----

function significant(v, n = 4) {
  if (v === null || v === undefined || !isFinite(v)) return '–';
  if (v === 0) return '0';
  const digits = Math.max(0, n - 1 - Math.floor(Math.log10(Math.abs(v))));
  return v.toLocaleString('en', {maximumFractionDigits: Math.min(digits, 12), useGrouping: Math.abs(v) >= 1e4});
}

const PREFIXES = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
const UNITS = {'bytes/s': 'B/s', 'bytes': 'B', 'flop/s': 'FLOP/s', 's': 's'};

// As it may be stated in a job: "25 GB/s", "1800 s".
function quantity(v, unit) {
  if (unit === 's') {
    const [scale, name] = v >= 1 || v === 0 ? [1, 's'] : v >= 1e-3 ? [1e-3, 'ms'] : [1e-6, 'us'];
    return `${+(v / scale).toPrecision(4)} ${name}`;
  }
  const [scale, prefix] = PREFIXES.find(p => v >= p[0]) || [1, ''];
  if (unit === 'flop/s' && scale < 1e9) return `${v / 1e9} GFLOP/s`;
  return `${+(v / scale).toPrecision(6)} ${prefix}${UNITS[unit]}`;
}

// A value as a number in base units; NaN if it is none.
function number(text) {
  const m = /^\s*([0-9.eE+-]+)\s*([a-zA-Z/]*)\s*$/.exec(text);
  if (!m) return NaN;
  const known = {'': 1, ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400};
  if (m[2] in known) return Number(m[1]) * known[m[2]];
  const u = /^([kKMGTP]?)(i?)(B\/s|b\/s|B|bytes\/s|bytes|FLOP\/s|flop\/s)$/.exec(m[2]);
  if (!u) return NaN;
  const power = ['', 'k', 'M', 'G', 'T', 'P'].indexOf(u[1] === 'K' ? 'k' : u[1]);
  return Number(m[1]) * Math.pow(u[2] ? 1024 : 1000, power) / (u[3] === 'b/s' ? 8 : 1);
}

// ---- a control for each key ----

// Where a slider stops: from an eighth to eight times the job's value, in steps of about a sixth.
function stops(key) {
  const v = number(key.value), whole = key.type === 'integer';
  const set = new Set([v]);
  if (!(v > 0)) {
    if (!isFinite(key.max) || !isFinite(key.min)) return null;
    for (let i = 0; i <= 20; i++) set.add(key.min + (key.max - key.min) * i / 20);
  } else {
    for (let i = -12; i <= 12; i++) {
      let x = v * Math.pow(2, i / 4);
      if (whole) {
        const grain = Math.pow(2, Math.max(0, Math.floor(Math.log2(x)) - 3));
        x = x >= 8 ? Math.round(x / grain) * grain : Math.max(1, Math.round(x));
      } else {
        x = Number(x.toPrecision(3));
      }
      set.add(x);
    }
    for (let i = -3; i <= 3; i++) {
      const x = v * Math.pow(2, i);
      if (!whole || Number.isInteger(x)) set.add(x);
    }
  }
  return [...set].filter(x => x >= key.min && x <= key.max).sort((a, b) => a - b);
}

function shown(key, v) {
  return key.type === 'quantity' ? quantity(v, key.unit) : String(+v.toPrecision(7));
}

function makeSlider(key, change) {
  const places = stops(key);
  const text = element('input', {className: 'value', spellcheck: false});
  text.setAttribute('aria-label', key.key);
  if (!places || places.length < 2) {
    text.addEventListener('change', () => change(text.value.trim()));
    return {parts: [text], show: v => { text.value = v ?? ''; }};
  }
  const slider = element('input', {type: 'range', min: 0, max: places.length - 1, step: 1});
  slider.setAttribute('aria-label', `${key.key}: ${key.meaning}`);
  slider.addEventListener('input', () => {
    text.value = shown(key, places[slider.value]);
    change(text.value);
  });
  text.addEventListener('change', () => change(text.value.trim()));
  return {
    parts: [text, slider],
    show(v) {
      const x = number(v ?? key.value);
      text.value = v ?? (isNaN(x) ? key.value : shown(key, x));
      slider.setAttribute('aria-valuetext', text.value);
      let near = 0;
      places.forEach((p, i) => { if (Math.abs(p - x) < Math.abs(places[near] - x)) near = i; });
      slider.value = near;
    },
  };
}

function makeChoice(key, change) {
  const words = key.type === 'bool' ? ['true', 'false'] : key.words;
  const select = element('select', {className: 'value'}), stands = key.value.split(' ')[0]; // "auto where ..."
  select.setAttribute('aria-label', key.key);
  select.append(element('option', {value: '', textContent: words.includes(stands) ? `${stands} (job)` : 'as in the job'}));
  for (const w of words) select.append(element('option', {value: w, textContent: w}));
  select.addEventListener('change', () => change(select.value));
  return {
    parts: [select],
    show(v) {
      if (v && ![...select.options].some(o => o.value === v)) select.append(element('option', {value: v, textContent: v}));
      select.value = v ?? '';
    },
  };
}

function makeModules(key, change) {
  const list = v => (v ?? key.value).replace(/[[\]\s]/g, '').split(',').filter(Boolean);
  const boxes = desk.modules.map(m => element('input', {type: 'checkbox', value: m}));
  const div = element('div', {className: 'boxes'}, ...boxes.map((b, i) => element('label', {}, b, ' ' + desk.modules[i])));
  for (const b of boxes)
    b.addEventListener('change', () => change(`[${boxes.filter(x => x.checked).map(x => x.value).join(', ')}]`));
  return {parts: [div], show(v) { const on = list(v); for (const b of boxes) b.checked = on.includes(b.value); }};
}

function makeText(key, change) {
  const text = element('input', {className: 'value', spellcheck: false, placeholder: key.value});
  text.setAttribute('aria-label', key.key);
  text.addEventListener('change', () => change(text.value.trim()));
  return {parts: [text], show: v => { text.value = v ?? ''; }};
}

function makeControl(key, change) {
  if (key.key === 'train.frozen') return makeModules(key, change);
  if (key.type === 'bool' || key.words.length) return makeChoice(key, change);
  if (['integer', 'number', 'quantity'].includes(key.type)) return makeSlider(key, change);
  return makeText(key, change);
}

// ---- sides ----

// Maps before what is inside them: cluster=h100 before cluster.nodes=64.
function assignments(side) {
  const depth = k => k.split('.').length;
  return [...side.set].sort((a, b) => depth(a[0]) - depth(b[0])).map(([k, v]) => `${k}=${v}`);
}

function form(side, more) {
  const p = new URLSearchParams();
  for (const a of assignments(side)) p.append('set', a);
  for (const [k, v] of Object.entries(more)) p.append(k, v);
  return p;
}

function makeSide(name) {
  const at = $(`#side-${name}`);
  const side = {name, at, set: new Map(), controls: new Map(), turn: 0, busy: false, again: false, timer: 0,
    normal: null, answer: null};
  at.append($('#side-template').content.cloneNode(true));
  $('h2', at).textContent = name === 'a' ? 'Setting' : 'Setting B';
  for (const k of desk.first) addControl(side, k);
  const input = $('.key', at);
  input.addEventListener('input', () => {
    const key = desk.byName.get(input.value.trim());
    $('.meaning', at).textContent = key ? `${key.meaning}: ${key.takes}` : '';
  });
  $('.other', at).addEventListener('submit', event => {
    event.preventDefault();
    const [name, ...value] = input.value.trim().split('=');
    if (!name) return;
    addControl(side, name);
    input.value = $('.meaning', at).textContent = '';
    if (value.length) setKey(side, name, value.join('='));
    else $('input, select', side.controls.get(name).row)?.focus();
  });
  $('.copy', at).addEventListener('click', () => copy($('.command code', at), $('.copy', at)));
  $('.reset', at).addEventListener('click', () => { side.set.clear(); changed(side); });
  return side;
}

function addControl(side, name) {
  if (side.controls.has(name)) return;
  const key = desk.byName.get(name) || {key: name, type: 'own', words: [], value: '', meaning: '', takes: ''};
  const control = makeControl(key, value => setKey(side, name, value));
  const undo = element('button', {type: 'button', className: 'undo', textContent: '×', title: `as in the job: ${key.value}`});
  undo.setAttribute('aria-label', `${name} as in the job`);
  undo.addEventListener('click', () => setKey(side, name, ''));
  const label = element('label', {textContent: desk.labels[name] || name, title: `${name}: ${key.meaning}`});
  control.row = element('div', {className: 'control'}, label, undo, ...control.parts);
  control.row.dataset.key = name;
  side.controls.set(name, control);
  $('.controls', side.at).append(control.row);
  control.show(side.set.get(name));
}

function setKey(side, name, value) {
  if (value === '') side.set.delete(name);
  else side.set.set(name, value);
  changed(side);
}

function quoted(word) {
  return /^[\w.,:=/@%+-]+$/.test(word) ? word : `'${word.replace(/'/g, `'\\''`)}'`;
}

function commandLine(side) {
  return [...desk.command, ...assignments(side)].map(quoted).join(' ');
}

async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand('copy');
  }
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

// ---- the address holds the settings ----

function writeAddress() {
  const p = new URLSearchParams();
  for (const side of open())
    for (const a of side.set.size ? assignments(side) : side.name === 'b' ? [''] : []) p.append(side.name, a);
  history.replaceState(null, '', p.size ? `#${p}` : location.pathname);
}

function readAddress() {
  const p = new URLSearchParams(location.hash.slice(1));
  for (const side of Object.values(sides)) {
    side.set.clear();
    for (const a of p.getAll(side.name)) {
      const cut = a.indexOf('=');
      if (cut > 0) side.set.set(a.slice(0, cut), a.slice(cut + 1));
    }
  }
  showTwo(p.has('b'));
  open().forEach(changed);
}

// ---- asking ----

const sides = {};
const open = () => Object.values(sides).filter(s => s.name === 'a' || document.body.classList.contains('two'));

function changed(side) {
  side.turn++;
  for (const k of side.set.keys()) addControl(side, k);
  for (const [name, control] of side.controls) {
    control.show(side.set.get(name));
    control.row.classList.toggle('changed', side.set.has(name));
  }
  $('.command code', side.at).textContent = commandLine(side);
  const query = form(side, {});
  for (const [name, path] of [['report', 'report.html'], ['plan', 'plan.json'], ['result', 'simulate.json']])
    $(`.export .${name}`, side.at).href = `${path}?${query}`;
  writeAddress();
  clearTimeout(side.timer);
  side.timer = setTimeout(() => askNormal(side), REST_MS);
  side.normal?.abort();
  askQuick(side);
}

async function post(side, effort, turn, signal) {
  const body = form(side, {effort, client, side: side.name, turn});
  const response = await fetch('answer', {method: 'POST', body, signal});
  const answer = await response.json();
  if (response.status === 409) return null; // outdated
  return response.ok ? answer : {feasible: false, reason: answer.error, kind: answer.kind};
}

function lost(side, error) {
  if (error.name === 'AbortError') return;
  state(side, 'bad', 'no answer from disttrain serve: is it still running?');
}

async function askQuick(side) {
  if (side.busy) { side.again = true; return; }
  side.busy = true;
  try {
    do {
      const turn = side.turn, begun = performance.now();
      side.again = false;
      const answer = await post(side, 'quick', turn);
      if (answer && turn >= (side.answer?.turn ?? 0) && !(side.answer?.turn === turn && side.answer.effort === 'normal'))
        show(side, {...answer, turn, effort: 'quick', round_s: (performance.now() - begun) / 1000});
    } while (side.again);
  } catch (error) {
    lost(side, error);
  }
  side.busy = false;
}

async function askNormal(side) {
  const turn = side.turn, abort = new AbortController(), begun = performance.now();
  side.normal = abort;
  side.at.dataset.resting = 'no';
  try {
    const answer = await post(side, 'normal', turn, abort.signal);
    if (answer && turn === side.turn)
      show(side, {...answer, turn, effort: 'normal', round_s: (performance.now() - begun) / 1000});
  } catch (error) {
    lost(side, error);
  }
}

// ---- showing ----

function state(side, kind, text) {
  const at = $('.state', side.at);
  at.className = `state ${kind}`;
  at.textContent = text;
}

function show(side, answer) {
  side.answer = answer;
  side.at.dataset.effort = answer.effort;
  side.at.dataset.turn = answer.turn;
  const took = `${answer.round_s.toFixed(2)} s`;
  if (!answer.feasible)
    state(side, 'bad', `${answer.kind}: ${answer.reason}`);
  else if (answer.effort === 'quick')
    state(side, 'quick', `Quick answer, ${took}: search.effort=quick, links not shared. The normal one follows at rest.`);
  else
    state(side, 'normal', `Normal answer, ${took}: what disttrain simulate prints.`);
  table();
  pictures(side);
}


const PERCENT = v => v * 100;
const ROWS = [ // label, unit, path or function, better (-1 less, 1 more), note
  ['Iteration', 's', r => r.iteration_s, -1,
    r => `80 % interval ${significant(r.iteration_s_p10)} to ${significant(r.iteration_s_p90)} s`],
  ['MFU', '%', r => PERCENT(r.mfu), 1, r => `${significant(PERCENT(r.mfu_cluster), 3)} % of the cluster's ${r.gpus} GPUs`],
  ['Throughput', 'tokens/s', r => r.tokens_per_s, 1, r => `${significant(r.samples_per_s)} samples/s`],
  ['1 T tokens take', 'days', r => 1e12 / (r.tokens_per_s * r.goodput) / 86400, -1,
    r => r.goodput < 1 ? 'failures and checkpoints included' : 'without failures and checkpoints'],
  ['GPUs used', '', r => r.gpus_used, 0, r => `of ${r.gpus}`],
  ['GPU hours for 1 T tokens', 'h', r => 1e12 / (r.tokens_per_s * r.goodput) / 3600 * r.gpus_used, -1],
  ['Fullest GPU', 'GiB', r => r.memory_max_bytes / 2 ** 30, 0,
    (r, a) => r.memory_unfit ? `does not fit: ${r.memory_unfit}`
      : a.capacity_bytes ? `of ${significant(a.capacity_bytes / 2 ** 30)} GiB, reserve included` : ''],
  ['Bubbles', '%', r => PERCENT(r.bubble_fraction), -1, () => "of the used GPUs' time without compute"],
  ['Exposed communication', 's', r => r.exposed_comm_s, -1, () => 'mean over GPUs'],
];

function cell(side, row) {
  const a = side.answer, td = element('td', {className: side.name});
  if (!a || !a.feasible) {
    td.textContent = '–';
    return td;
  }
  td.append(`${significant(row[2](a.result, a))}${row[1] ? ' ' + row[1] : ''}`);
  td.classList.toggle('pending', a.turn !== side.turn);
  const note = row[4]?.(a.result, a);
  if (note) td.append(element('small', {textContent: note}));
  if (row[0] === 'Fullest GPU' && a.capacity_bytes)
    td.append(meter(row[2](a.result, a) * 2 ** 30 / a.capacity_bytes));
  return td;
}

function meter(share) {
  const i = element('i');
  i.style.width = `${Math.min(100, 100 * share)}%`;
  return element('div', {className: 'meter'}, i);
}

function difference(row) {
  const td = element('td', {className: 'b'});
  const [a, b] = [sides.a.answer, sides.b?.answer];
  if (!a?.feasible || !b?.feasible) return td;
  const x = row[2](a.result, a), y = row[2](b.result, b), d = y - x;
  if (d === 0) {
    td.textContent = 'same';
    return td;
  }
  const sign = d > 0 ? '+' : '−', unit = row[1] === '%' ? 'points' : row[1];
  td.textContent = `${sign}${significant(Math.abs(d), 3)}${unit ? ' ' + unit : ''}`;
  if (x) td.append(element('small', {textContent: `${sign}${Math.abs(100 * d / x).toFixed(1)} %`}));
  if (row[3]) td.classList.add(d * row[3] > 0 ? 'better' : 'worse');
  return td;
}

function layout(m) {
  let t = `tp${m.tp} pp${m.pp} dp${m.dp}`;
  for (const k of ['cp', 'ep', 'ip', 'vpp']) if (m[k] > 1) t += ` ${k}${m[k]}`;
  return `${t} = ${m.gpus} GPUs${m.with ? `, with ${m.with}` : ''}${m.frozen ? ', frozen' : ''}`;
}

function planCell(side) {
  const td = element('td', {className: side.name}), a = side.answer;
  if (!a?.feasible) return td;
  for (const m of a.result.modules)
    td.append(element('div', {className: 'module'}, element('b', {textContent: m.name}), ` ${layout(m)}`));
  return td;
}

function provenanceCell(side) {
  const td = element('td', {className: side.name}), a = side.answer;
  if (!a?.feasible) return td;
  const bar = element('div', {className: 'bar'}), words = [];
  for (const [kind, share] of Object.entries(a.result.provenance)) {
    if (share < 0.0005) continue;
    const i = element('i', {className: kind, title: `${kind} ${(100 * share).toFixed(1)} %`});
    i.style.width = `${100 * share}%`;
    bar.append(i);
    words.push(`${kind} ${(100 * share).toFixed(1)} %`);
  }
  td.append(element('small', {textContent: words.join(', ')}), bar);
  return td;
}

function table() {
  const body = $('#results tbody');
  const two = document.body.classList.contains('two');
  $('#results thead th.a').textContent = two ? 'A' : 'Answer';
  const line = (label, cells, last) => element('tr', {}, element('th', {scope: 'row', textContent: label}), ...cells,
    last || element('td', {className: 'b'}));
  const shownSides = [sides.a, sides.b || {name: 'b'}];
  const rows = ROWS.map(row => line(row[0], shownSides.map(s => cell(s, row)), difference(row)));
  rows[0].className = 'head';
  const [a, b] = shownSides.map(s => s.answer);
  if (a && b && a.effort !== b.effort) rows[0].lastChild.append(element('small', {textContent: 'one of the two is quick'}));
  rows.push(line('Plan', shownSides.map(planCell)));
  rows.push(line('The time rests on', shownSides.map(provenanceCell)));
  body.replaceChildren(...rows);
}

function pictures(side) {
  const at = $(`#pictures figure.${side.name}`), a = side.answer;
  if (a.effort !== 'normal' && a.feasible) { // the picture is that of the last normal answer until the next
    at.classList.toggle('pending', true);
    return;
  }
  at.classList.remove('pending');
  $('.picture', at).innerHTML = a.timeline || ''; // made and escaped by our own server
  $('figcaption', at).textContent = a.timeline ? `Timeline of an iteration${side.name === 'b' ? ', B' : ''}` : '';
}

// ---- A and B ----

function showTwo(two) {
  document.body.classList.toggle('two', two);
  $('#desk').classList.toggle('two', two);
  $('#side-b').hidden = !two;
  $('#compare').setAttribute('aria-pressed', two);
  $('#compare').textContent = two ? 'One setting only' : 'Compare with a second setting';
  $('#side-a h2').textContent = two ? 'Setting A' : 'Setting';
}

function toggleTwo() {
  const two = !document.body.classList.contains('two');
  showTwo(two);
  if (two) {
    sides.b.set = new Map(sides.a.set);
    changed(sides.b);
  } else {
    writeAddress();
    table();
  }
}

async function start() {
  desk = await (await fetch('keys.json')).json();
  const style = new CSSStyleSheet(); // of timelines, made with them
  style.replaceSync(desk.style);
  document.adoptedStyleSheets.push(style);
  desk.byName = new Map(desk.keys.map(k => [k.key, k]));
  document.title = `${desk.job}: DistTrain`;
  $('#title').textContent = desk.job;
  $('#subtitle').textContent = `${desk.model} on ${desk.cluster} · DistTrain ${desk.version}`;
  $('#keys').append(...desk.keys.map(k => element('option', {value: k.key, label: k.meaning})));
  for (const name of ['a', 'b']) sides[name] = makeSide(name);
  $('#compare').addEventListener('click', toggleTwo);
  addEventListener('hashchange', readAddress);
  readAddress();
}

start().catch(error => { $('#subtitle').textContent = `the page could not start: ${error.message}`; });
