// JSON for people, made from its text and not from its values: a number stays the number that was written, and a text
// that is not complete yet is laid out as far as it goes.

export function pretty(text) {
  let depth = 0
  let shown = ''
  for (const [token] of text.matchAll(/"(?:\\.|[^"\\])*"?|[[\]{},:]|[^\s[\]{},:"]+/g)) {
    if ('}]'.includes(token)) shown += newline(--depth)
    shown += token === ':' ? ': ' : token
    if ('{['.includes(token)) shown += newline(++depth)
    if (token === ',') shown += newline(depth)
  }
  return shown.replace(/([{[])\s+([}\]])/g, '$1$2')
}

const newline = (depth) => `\n${'  '.repeat(Math.max(0, depth))}`
