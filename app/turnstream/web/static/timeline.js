// The timeline of an answer: a bar for each model call and tool, with tokens, cache reads and cost.

import { seconds } from './cards.js'
import { h } from './dom.js'
import { amount } from './models.js'
import { TEXTS } from './texts.js'

const { timeline: texts } = TEXTS

/** Creates a table with a bar in each row, and the sums. */
export function timeline(turn) {
  const rows = rowsOf(turn)
  const start = Math.min(...rows.map((row) => row.from))
  const end = Math.max(...rows.map((row) => row.to))
  const body = rows.map((row) => rowElement(row, start, Math.max(end - start, 1)))
  const names = [texts.step, `0 – ${seconds((end - start) / 1000)}`, texts.time, texts.tokens]
  const head = h(
    'tr',
    {},
    names.map((text) => h('th', { scope: 'col' }, text)),
  )
  const table = h(
    'table',
    {},
    h('caption', { class: 'unseen' }, texts.caption),
    h('thead', {}, head),
    h('tbody', {}, body),
  )
  return [h('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': texts.steps }, table), totals(turn)]
}

function rowsOf(turn) {
  const begun = time(turn.created_at)
  const rounds = turn.rounds.filter((round) => round.started_at)
  /** @type {any[]} */
  const rows = [
    { kind: 'queue', name: texts.queue, from: begun, to: time(rounds[0]?.started_at) ?? time(turn.ended_at) ?? begun },
  ]
  if (rows[0].to - begun < 50) rows.pop()
  for (const [place, round] of rounds.entries())
    rows.push(roundRow(round, turn), ...toolRows(round, rounds[place + 1], turn))
  return rows.length ? rows : [{ kind: 'queue', name: texts.queue, from: begun, to: begun }]
}

function roundRow(round, turn) {
  const from = time(round.started_at)
  const to = time(round.sealed_at) ?? time(turn.ended_at) ?? Date.now()
  return {
    kind: round.stop_reason === 'voided' ? 'voided' : 'model',
    name: texts.round(round.round),
    from,
    first: time(round.first_delta_at),
    to,
    awaited: texts.firstWord,
    usage: round.usage,
  }
}

/** Returns a row for each tool of a round, with the time for which the tool waited for a person. */
function toolRows(round, next, turn) {
  const [sealed, after] = [time(round.sealed_at), time(next?.started_at) ?? time(turn.ended_at)]
  if (sealed === null || after === null) return []
  const results = turn.blocks.filter((block) => block.type === 'tool_result' && block.round === round.round)
  const rows = results.map((block) => toolRow(block, sealed, after)).filter(Boolean)
  return rows.sort((a, b) => a.from - b.from)
}

function toolRow({ name, is_error, notes }, sealed, after) {
  const kind = is_error ? 'tool-failed' : 'tool'
  const ran = time(notes?.started_at)
  // The call waited for an approval or, if it has no notes because it did not run on the server, for a client tool.
  const waited = notes?.approval || (!notes && !is_error)
  if (!ran) return waited && { kind, name, from: sealed, first: after, to: after, awaited: texts.you }
  const to = ran + notes.seconds * 1000
  return waited ? { kind, name, from: sealed, first: ran, to, awaited: texts.you } : { kind, name, from: ran, to }
}

function rowElement(row, start, span) {
  const share = (moment) => `${(100 * (moment - start)) / span}%`
  const bar = h('div', { class: `bar ${row.kind}` })
  Object.assign(bar.style, { left: share(row.from), width: `${(100 * (row.to - row.from)) / span}%` })
  if (row.first) {
    const pale = h('div', { class: 'waited' })
    pale.style.width = `${(100 * (row.first - row.from)) / Math.max(row.to - row.from, 1)}%`
    bar.append(pale)
  }
  const length = seconds((row.to - row.from) / 1000)
  const waited = row.first ? seconds((row.first - row.from) / 1000) : ''
  const title = waited ? texts.waited(length, waited, row.awaited) : length
  return h(
    'tr',
    {},
    h('th', { scope: 'row' }, row.name),
    h('td', { class: 'lane' }, h('div', { class: 'track', title }, bar)),
    h('td', {}, length),
    h('td', {}, row.usage ? tokensOf(row.usage) : ''),
  )
}

const number = (value) => (value ?? 0).toLocaleString('en')

function tokensOf({ input_tokens, output_tokens, cache_read_input_tokens: read, cache_creation_input_tokens: write }) {
  const sent = (input_tokens ?? 0) + (read ?? 0) + (write ?? 0)
  return texts.usage(number(sent), read ? number(read) : '', number(output_tokens))
}

function totals(turn) {
  const { usage } = turn
  const sums = h('dl', { class: 'totals' })
  const add = (name, value) => value && sums.append(h('div', {}, h('dt', {}, name), h('dd', {}, value)))
  add(texts.model, turn.model)
  add(
    texts.sent,
    number((usage.input_tokens ?? 0) + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0)),
  )
  add(texts.read, usage.cache_read_input_tokens && number(usage.cache_read_input_tokens))
  add(texts.written, usage.cache_creation_input_tokens && number(usage.cache_creation_input_tokens))
  add(texts.answered, number(usage.output_tokens))
  add(texts.cost, turn.cost && amount(turn.cost))
  add(texts.hooks, turn.hook_failures && number(turn.hook_failures))
  return sums
}

/** @returns {any} milliseconds, or null for none */
const time = (text) => (text ? Date.parse(text) : null)
