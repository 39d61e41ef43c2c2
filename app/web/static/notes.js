// What is noted on results, in words: which policies a call needed, and what a person decided about it.

const WORDS = {
  retries: 'tried again',
  timeout: 'out of time',
  breaker: 'left alone for a while',
  fallback: 'answered by another tool',
  cut: 'the model was told a part',
  waited: 'had to wait',
  calls_per_turn: 'called too often',
  memo: 'as before',
}
const DECISIONS = {
  approve: 'allowed',
  denied: 'not allowed',
  expired: 'nobody answered in time',
  superseded: 'something else was said instead',
}

export function remarks({ notes }) {
  const { approval, ...others } = typeof notes === 'object' && notes ? notes : {}
  const said = Object.keys(others).filter((note) => note in WORDS)
  const decided = approval
    ? [approval.input ? 'allowed, with another input' : (DECISIONS[approval.decision] ?? approval.decision)]
    : []
  return [...decided, ...said.map((note) => WORDS[note])]
}
