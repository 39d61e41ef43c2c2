// The page for operators: shows the stream of the overview, and offers the acts of operators.

import { barChart } from './admin-charts.js'
import { amount, cost, span } from './admin-figures.js'
import { Operator } from './admin-session.js'
import { confirmed, find, h, setText } from './dom.js'
import { Refused } from './turnstream.js'

const STALE = 15_000 // milliseconds without a new state, after which the displayed state may be wrong
const CHECK = 5_000
const LATE_JOB = 60 // seconds
const ORDER = ['running', 'waiting', 'queued']

const client = new Operator()
let seen = Date.now()

// --- what runs and waits ---------------------------------------------------------------------------------------------

/** Describes the background calls; empty if there are none. */
function jobsText({ due, running, detached, overdue }) {
  if (!due && !running && !detached) return ''
  const late = overdue > LATE_JOB ? `, the most overdue for ${span(overdue)}` : ''
  return `. Jobs: ${amount(due)} due, ${amount(running)} running, ${amount(detached)} detached${late}`
}

function drawNow({ at, replicas, counts, oldest_queued_seconds: oldest, jobs, turns }) {
  seen = Date.now()
  setText(find('#as-of'), `as of ${new Date(at).toLocaleTimeString()}`)
  setText(find('#connection'), '')
  const waits = counts.queued && oldest ? `, the oldest for ${span(oldest)}` : ''
  const total = ORDER.map((status) => `${amount(counts[status])} ${status}`).join(', ')
  setText(find('#counts'), `${total}${waits}${jobsText(jobs)}`)
  keyed(find('#open-turns'), turns, turnItem, updateTurn)
  keyed(find('#replicas'), replicas, replicaItem, updateReplica)
}

/**
 * Gives `list` one child for each of `items`, in their order. As long as an item stays, its element keeps the focus.
 */
function keyed(list, items, make, update) {
  const elements = new Map([...list.children].map((element) => [element.dataset.id, element]))
  const wanted = items.map((item) => {
    const element = elements.get(item.id) ?? make(item)
    elements.delete(item.id)
    update(element, item)
    return element
  })
  for (const element of elements.values()) element.remove()
  wanted.forEach((element, place) => {
    if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null)
  })
}

function turnItem({ id, chat, owner, model }) {
  return h(
    'li',
    { 'data-id': id },
    h(
      'div',
      { class: 'line' },
      h('span', { class: 'badge' }),
      h('bdi', { class: 'name' }, model ?? ''),
      h('bdi', {}, owner),
      h('span', { class: 'age hint' }),
    ),
    h('p', { class: 'why' }),
    h(
      'p',
      { class: 'hint more-of-it' },
      h('code', { title: `in the chat ${chat}` }, id),
      h('span', { class: 'where' }),
    ),
    h(
      'div',
      { class: 'acts' },
      actButton('Re-queue', `Re-queue turn ${id}`, () => requeue(id)),
      actButton('Stop', `Stop turn ${id}`, () => stop(id)),
    ),
  )
}

function updateTurn(element, turn) {
  const { status, seconds, reasons, attempt, replica, readers, trace, stopping } = turn
  setText(find('.badge', element), stopping ? 'stopping' : status)
  find('.badge', element).dataset.state = status
  setText(find('.age', element), span(seconds))
  setText(find('.why', element), reasons.join(' '))
  const where = [
    `attempt ${attempt}`,
    replica && `on ${replica}`,
    `${readers} ${readers === 1 ? 'reader' : 'readers'}`,
    trace && `trace ${trace}`,
  ]
  setText(
    find('.where', element),
    where
      .filter(Boolean)
      .map((part) => ` · ${part}`)
      .join(''),
  )
  const [requeueButton, stopButton] = element.querySelectorAll('.acts button')
  requeueButton.hidden = status !== 'running'
  stopButton.disabled = stopping
}

function replicaItem({ id, address, since }) {
  return h(
    'li',
    { 'data-id': id },
    h(
      'div',
      { class: 'line' },
      h('span', { class: 'badge' }),
      h('bdi', { class: 'name' }, address),
      h('span', { class: 'load' }),
      h('span', { class: 'lease hint' }),
    ),
    h('p', { class: 'hint more-of-it' }, h('code', {}, id), ` · since ${new Date(since).toLocaleString()}`),
    h(
      'div',
      { class: 'acts' },
      actButton('Drain', `Drain the replica ${address}`, () => drain(id, address)),
    ),
  )
}

function updateReplica(element, { state, lease_seconds: lease, running }) {
  setText(find('.badge', element), state)
  find('.badge', element).dataset.state = state
  setText(find('.load', element), `${amount(running)} ${running === 1 ? 'turn' : 'turns'}`)
  setText(find('.lease', element), lease < 0 ? `lease ended ${span(-lease)} ago` : `lease for ${span(lease)}`)
  find('.acts button', element).hidden = state !== 'alive'
}

const actButton = (name, label, onclick) => h('button', { type: 'button', 'aria-label': label, onclick }, name)

// --- figures ---------------------------------------------------------------------------------------------------------

function drawHour({ until, minutes, models, failures, tools }) {
  const newest = Math.floor(Date.parse(until) / 60_000)
  const places = new Map(minutes.map((minute) => [Math.floor(Date.parse(minute.at) / 60_000), minute]))
  const ofHour = (name) => Array.from({ length: 60 }, (_, place) => places.get(newest - 59 + place)?.[name] ?? 0)
  const sum = (name) => minutes.reduce((total, minute) => total + minute[name], 0)
  const last = minutes.findLast((minute) => minute.first_text_median !== null)
  const latency = last ? span(last.first_text_median) : '–'
  find('#charts').replaceChildren(
    barChart('Model calls', amount(sum('calls')), [['calls', ofHour('calls')]], amount),
    barChart('Output tokens', amount(sum('output_tokens')), [['tokens', ofHour('output_tokens')]], amount),
    barChart(
      'First text, median',
      latency,
      [
        ['slowest', ofHour('first_text_slow')],
        ['median', ofHour('first_text_median')],
      ],
      span,
    ),
    barChart('Failed turns', amount(sum('failed')), [['failed', ofHour('failed')]], amount),
  )
  const none = 'None in the last hour.'
  table('#failures', none, ['Provider', 'Model', 'Error', 'Turns', 'Last'], failures, (each) => [
    each.provider ?? '–',
    each.model,
    each.type,
    amount(each.turns),
    new Date(each.last).toLocaleTimeString(),
  ])
  table('#models', none, ['Provider', 'Model', 'Calls', 'Broke off', 'First text', 'Slowest'], models, (each) => [
    each.provider ?? '–',
    each.model,
    amount(each.calls),
    amount(each.cut_off),
    span(each.first_text_median),
    span(each.first_text_slow),
  ])
  table('#tools', none, ['Tool', 'Calls', 'Running', 'Median', 'Slowest'], tools, (each) => [
    each.name,
    amount(each.calls),
    amount(each.running),
    span(each.median),
    span(each.slowest),
  ])
}

function drawSpend({ owners, models }) {
  const row = (each) => [each.name, amount(each.calls), amount(tokensOf(each)), cost(each.cost)]
  table('#owners', 'Nothing was spent today.', ['Owner', 'Calls', 'Tokens', 'Cost'], owners, row)
  table('#spend', 'Nothing was spent today.', ['Model', 'Calls', 'Tokens', 'Cost'], models, row)
}

const tokensOf = (figures) =>
  ['input', 'cache_read', 'cache_write', 'output'].reduce((total, kind) => total + figures[`${kind}_tokens`], 0)

/** Creates a row. Its first cell is its name; other cells are aligned to the right if they are numbers. */
function table(place, none, heads, items, cells) {
  const rows = items.map((item) => h('tr', {}, ...cells(item).map((text, column) => h(column ? 'td' : 'th', {}, text))))
  for (const row of rows) row.firstElementChild?.setAttribute('scope', 'row')
  const head = h('thead', {}, h('tr', {}, ...heads.map((text) => h('th', { scope: 'col' }, text))))
  const label = find('h2', find(place).parentElement).textContent
  const shown = h(
    'div',
    { class: 'wide', tabindex: 0, role: 'group', 'aria-label': label },
    h('table', {}, head, h('tbody', {}, rows)),
  )
  find(place).replaceChildren(items.length ? shown : h('p', { class: 'hint' }, none))
}

// --- acts ------------------------------------------------------------------------------------------------------------

async function stop(turn) {
  const consequence = 'What it has written stays. Its owner sees it as stopped.'
  if (await confirmed('Stop this turn?', consequence, 'Stop')) await act(`/api/admin/turns/${turn}/stop`)
}

async function requeue(turn) {
  const consequence =
    'Its replica gives it up, and one that has room goes on from what is stored. A tool call that runs now is not repeated unless that is safe.'
  if (await confirmed('Put this turn back into the queue?', consequence, 'Re-queue'))
    await act(`/api/admin/turns/${turn}/requeue`)
}

async function drain(replica, address) {
  const others = find('#replicas').querySelectorAll('.badge[data-state=alive]').length - 1
  const consequence = `It takes no more turns until its process is started again; streams that are read there go on. ${others ? 'Other replicas take its turns over.' : 'It is the only one that takes turns: new ones will wait in the queue.'}`
  if (await confirmed(`Drain ${address}?`, consequence, 'Drain')) await act(`/api/admin/replicas/${replica}/drain`)
}

async function act(path) {
  setText(find('#trouble'), '')
  try {
    await client.request('POST', path)
  } catch (error) {
    setText(find('#trouble'), error instanceof TypeError ? 'The server cannot be reached. Try again.' : error.message)
  }
}

// --- the stream ------------------------------------------------------------------------------------------------------

const DRAW = { now: drawNow, hour: drawHour, spend: drawSpend }

/** Follows the overview while the page is shown: a hidden page costs the server nothing. */
async function watch() {
  for (;;) {
    await shown()
    const hiding = new AbortController()
    const hide = () => document.hidden && hiding.abort()
    document.addEventListener('visibilitychange', hide)
    try {
      for await (const { event, data } of client.overview({ signal: hiding.signal, connection: showConnection }))
        DRAW[event]?.(data)
    } catch (error) {
      if (hiding.signal.aborted) continue
      if (!(error instanceof Refused)) throw error
      await client.askForToken(error.message)
    } finally {
      document.removeEventListener('visibilitychange', hide)
    }
  }
}

async function shown() {
  while (document.hidden)
    await new Promise((resolve) => document.addEventListener('visibilitychange', resolve, { once: true }))
}

function showConnection(state) {
  setText(find('#connection'), state === 'open' ? '' : 'Reconnecting …')
}

setInterval(() => {
  if (!document.hidden && Date.now() - seen > STALE)
    setText(find('#connection'), 'Nothing new is received: the server or its database may be away.')
}, CHECK)

document.documentElement.dataset.ready = 'yes' // for programs that drive the page
await watch()
