// Describes the notes of the server: the notes on tool results, and the blocks that the server writes itself (shortened
// results, summaries of turns, verdicts on an output, reports of background calls).

import { TEXTS } from './texts.js'

const { notes: texts } = TEXTS

/** Describes the notes on a tool result: the decision of a person about the call, and the policies that acted on it. */
export function remarksOf({ notes }) {
  const { approval, ...others } = typeof notes === 'object' && notes ? notes : {}
  const policies = Object.keys(others).filter((note) => note in texts.policies)
  const decision = approval
    ? [approval.input ? texts.otherInput : (texts.decisions[approval.decision] ?? approval.decision)]
    : []
  const by = approval?.by ? [texts.decidedBy(approval.by)] : []
  return [
    ...decision,
    ...by,
    ...policies.map((note) => (note === 'cached' ? keptFor(others.cached) : texts.policies[note])),
  ]
}

const keptFor = (age) => texts.kept(age < 90 ? `${Math.round(age)} s` : `${Math.round(age / 60)} min`)

/** Describes the policies and limits that acted on the turn, except the policies that its results name. */
export function degradedText(degraded) {
  const lines = degraded
    .filter(({ what }) => what in texts.ofTurns)
    .map((item) => `${texts.ofTurns[item.what]}${costOf(item)}.`)
  return [...new Set(lines)].join(' ')
}

function costOf({ output_tokens: tokens, estimated, limit, used }) {
  if (limit !== null && limit !== undefined) return texts.used(number(used), number(limit))
  return tokens ? texts.spent(number(tokens), estimated) : ''
}

// --- blocks of the server --------------------------------------------------------------------------------------------

const ASIDES = { report, shortened, summary, verdict }
const MAX_LINE = 140 // characters

/**
 * Describes a block that the server wrote: `line` is always visible; `text` and `facts` (names and values) are folded.
 * Returns null for any other block.
 */
export function asideOf(block, turn) {
  return Object.hasOwn(ASIDES, block.type) ? { text: block.text, facts: [], ...ASIDES[block.type](block, turn) } : null
}

function shortened({ data }, turn) {
  if (!data) return { line: texts.shortened }
  const { first, last, head, results, left_out, files = 0 } = data
  const where = [
    [texts.from, place(first, turn)],
    [texts.to, place(last, turn)],
  ]
  const what = texts.resultsShortened(results)
  if (files) {
    const less = texts.leftOut(number(left_out), files)
    return { line: texts.without(what, less), facts: [...where, [texts.leftOutName, less]] }
  }
  const sent = results * head
  const [before, after] = [number(sent + left_out), number(sent)]
  return {
    line: texts.lengths(what, before, after),
    facts: [...where, [texts.before, texts.characters(before)], [texts.now, texts.firstOfEach(after, number(head))]],
  }
}

function place({ turn, round }, own) {
  return turn === own ? texts.roundHere(round) : texts.roundBefore(round)
}

function summary({ open }) {
  return { line: open ? texts.summarising : texts.summarised }
}

function verdict({ data, text }) {
  if (data?.taken) return { sign: 'check', line: texts.accepted }
  const wrong = text.replace(/^The output is not right\. /, '').replace(/\s+/g, ' ')
  return {
    sign: 'cross',
    line: texts.notAccepted(wrong.length > MAX_LINE ? `${wrong.slice(0, MAX_LINE)}…` : wrong),
  }
}

function report({ data }) {
  const { name = '', is_error: failed } = data ?? {}
  return { sign: failed ? 'cross' : 'check', line: failed ? texts.reportedError(name) : texts.reported(name) }
}

const number = (value) => value.toLocaleString('en')
