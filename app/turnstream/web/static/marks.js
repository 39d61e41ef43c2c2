// Marks searched words in the displayed text. A mark is a range of the rendered text, so no element changes.

const NAME = 'found'
// Words are searched within each of these elements, across the elements inside: `light<em>house</em>` has "lighthouse".
const LINES = 'p, li, td, th, h1, h2, h3, h4, h5, h6, pre, blockquote, .plain, .prose'

/** Marks `words` within an element, and removes all earlier marks. Does nothing if the browser has no highlights. */
export function markWords(within, words) {
  if (!globalThis.CSS?.highlights) return
  CSS.highlights.delete(NAME)
  if (!words.length) return
  const longestFirst = words.toSorted((a, b) => b.length - a.length)
  const pattern = new RegExp(longestFirst.map((word) => word.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')).join('|'), 'giu')
  const lines = Map.groupBy(textsIn(within), (text) => text.parentElement.closest(LINES))
  const ranges = [...lines.values()].flatMap((texts) => rangesOf(texts, pattern))
  CSS.highlights.set(NAME, new Highlight(...ranges))
}

function textsIn(within) {
  const walker = document.createTreeWalker(within, NodeFilter.SHOW_TEXT)
  const texts = []
  while (walker.nextNode()) if (walker.currentNode.parentElement?.closest(LINES)) texts.push(walker.currentNode)
  return texts
}

function rangesOf(texts, pattern) {
  const whole = texts.map((text) => text.data).join('')
  return [...whole.matchAll(pattern)].map(({ index, 0: word }) => {
    const range = new Range()
    range.setStart(...placeOf(texts, index))
    range.setEnd(...placeOf(texts, index + word.length - 1, 1))
    return range
  })
}

/** Finds the text with the character at `offset` of all texts. Returns this text, and the offset in it plus `more`. */
function placeOf(texts, offset, more = 0) {
  for (const text of texts) {
    if (offset < text.data.length) return /** @type {[Text, number]} */ ([text, offset + more])
    offset -= text.data.length
  }
  throw new RangeError('behind the last text')
}
