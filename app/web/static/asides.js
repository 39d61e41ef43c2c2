// What the server notes between the blocks of a model: that older results are sent shortened, that turns were summarised,
// and what became of an output.

const KINDS = { shortened, summary, verdict }
const LONGEST = 140 // characters of a line

/** `line` is always seen, `text` and `facts` (names and values) are folded; null for a block that is no such note. */
export function asideOf(block, turn) {
  return Object.hasOwn(KINDS, block.type) ? { text: block.text, facts: [], ...KINDS[block.type](block, turn) } : null
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
    line: `Output not accepted: ${wrong.length > LONGEST ? `${wrong.slice(0, LONGEST)}…` : wrong}`,
  }
}

const number = (value) => value.toLocaleString('en')
const counted = (count, what) => `${number(count)} ${what}${count === 1 ? '' : 's'}`
