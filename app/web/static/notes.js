// The server's notes in words: its own blocks among those of a model (results sent shortened, turns summarised, an output
// accepted or not), and the notes on tool results.

const POLICIES = {
  retries: 'tried again',
  timeout: 'timed out',
  breaker: 'not called: it failed too often',
  fallback: 'answered by another tool',
  cut: 'the model got a part of it',
  data_left_out: 'its data for the page was left out',
  waited: 'waited for a slot',
  calls_per_turn: 'called too often',
  summarised: 'the model got a summary of it',
  summary_failed: 'could not be summarised',
  cached: 'answer that was kept',
  memo: 'result of an earlier call',
}
const DECISIONS = {
  approve: 'allowed',
  remembered: 'allowed for this chat',
  denied: 'not allowed',
  expired: 'nobody answered in time',
  superseded: 'another message came first',
}

/** The notes on a tool result: what a person decided about the call, and the policies it needed. */
export function remarksOf({ notes }) {
  const { approval, ...others } = typeof notes === 'object' && notes ? notes : {}
  const policies = Object.keys(others).filter((note) => note in POLICIES)
  const decision = approval
    ? [approval.input ? 'allowed, with another input' : (DECISIONS[approval.decision] ?? approval.decision)]
    : []
  return [...decision, ...policies.map((note) => (note === 'cached' ? keptFor(others.cached) : POLICIES[note]))]
}

const keptFor = (age) =>
  `answer that was kept, ${age < 90 ? `${Math.round(age)} s` : `${Math.round(age / 60)} min`} old`

// Of the turn as a whole, or of one of its replies.
const OF_TURNS = {
  continued: 'The answer was interrupted and continued',
  rewritten: 'A part of the answer was interrupted and written anew',
  fallback_model: 'Another model has helped out',
  assembled_answer: 'No model could answer: this is what the tools have found',
  all_tools_failed: 'All tools failed',
  max_rounds: 'The limit of tool rounds was reached',
  hard_max_rounds: 'The limit of tool rounds was reached',
  max_calls: 'The limit of tool calls was reached',
  budget_tokens: 'The budget of tokens is used up',
  budget_cost: 'The budget is used up',
  budget_seconds: 'The time for this answer is used up',
}

/** What the turn needed besides the policies of its results, in words. */
export function degradedText(degraded) {
  const lines = degraded.filter(({ what }) => what in OF_TURNS).map((item) => `${OF_TURNS[item.what]}${costOf(item)}.`)
  return [...new Set(lines)].join(' ')
}

function costOf({ output_tokens: tokens, estimated, limit, used }) {
  if (limit !== null && limit !== undefined) return ` (${number(used)} of ${number(limit)})`
  return tokens ? ` (${estimated ? 'about ' : ''}${number(tokens)} tokens before that)` : ''
}

// --- blocks of the server --------------------------------------------------------------------------------------------

const ASIDES = { shortened, summary, verdict }
const MAX_LINE = 140 // characters

/**
 * A block of the server's own as `line`, which is always visible, and `text` and `facts` (names and values), which are
 * folded. Null for any other block.
 */
export function asideOf(block, turn) {
  return Object.hasOwn(ASIDES, block.type) ? { text: block.text, facts: [], ...ASIDES[block.type](block, turn) } : null
}

function shortened({ data }, turn) {
  if (!data) return { line: 'Older tool results are sent shortened' }
  const { first, last, head, results, left_out, files = 0 } = data
  const where = [
    ['From', place(first, turn)],
    ['To', place(last, turn)],
  ]
  const what = `${counted(results, 'older tool result')} sent shortened`
  if (files) {
    const less = `${number(left_out)} characters and ${counted(files, 'file')}`
    return { line: `${what} · without ${less}`, facts: [...where, ['Left out', less]] }
  }
  const sent = results * head
  const [before, after] = [number(sent + left_out), number(sent)]
  return {
    line: `${what} · ${before} → ${after} characters`,
    facts: [
      ...where,
      ['Before', `${before} characters`],
      ['Now', `${after} characters, the first ${number(head)} of each`],
    ],
  }
}

function place({ turn, round }, own) {
  return `round ${round} of ${turn === own ? 'this answer' : 'an earlier answer'}`
}

function summary({ open }) {
  return { line: open ? 'Summarising the turns before …' : 'The turns before were summarised' }
}

function verdict({ data, text }) {
  if (data?.taken) return { sign: 'check', line: 'Output accepted' }
  const wrong = text.replace(/^The output is not right\. /, '').replace(/\s+/g, ' ')
  return {
    sign: 'cross',
    line: `Output not accepted: ${wrong.length > MAX_LINE ? `${wrong.slice(0, MAX_LINE)}…` : wrong}`,
  }
}

const number = (value) => value.toLocaleString('en')
const counted = (count, what) => `${number(count)} ${what}${count === 1 ? '' : 's'}`
