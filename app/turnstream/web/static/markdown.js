// Converts Markdown to nodes. The output of a model is not trusted: HTML in it is shown as text, and the converted
// Markdown passes through the sanitiser, which is the only place of the page where text becomes HTML.

import { Lexer, Marked, Parser } from './vendor/marked.esm.js'
import './vendor/purify.min.js'
import { copy, h, iconButton, setText } from './dom.js'
import { highlighted } from './highlight.js'
import { showFormula } from './math.js'
import { TEXTS } from './texts.js'

const ALLOWED = {
  ALLOWED_TAGS:
    'a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong sub sup table tbody td th thead tr ul'.split(
      ' ',
    ),
  ALLOWED_ATTR: ['align', 'data-language', 'data-math', 'data-note', 'href', 'start'],
  ADD_URI_SAFE_ATTR: ['align', 'data-language', 'data-math', 'data-note', 'start'],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
}

const escaped = (text) =>
  text.replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign])

const MAX_TEX = 4_000 // characters
const BLANK_LINE = /\n[ \t]*\n/
const untilBlankLine = (text) => text.split(BLANK_LINE, 1)[0]

/** Returns the formula at the beginning of a text, or undefined if the formula does not end within its limit. */
function formulaAt(text, forms) {
  for (const [begin, end] of forms) {
    const length = begin.exec(text)?.[0].length
    if (!length) continue
    const rest = untilBlankLine(text.slice(length, length + MAX_TEX))
    const found = end.exec(rest.length < MAX_TEX ? `${rest}\n` : rest)
    if (found?.index) {
      const raw = text.slice(0, length + found.index + found[0].length)
      return { raw, text: rest.slice(0, found.index).trim() }
    }
  }
}

/**
 * Returns an extension of marked for formulas. `level` is `block` or `inline`. `start` finds where a formula may begin.
 */
function formulas(level, start, find) {
  const display = level === 'block'
  const type = `${level}Formula`
  return {
    name: type,
    level,
    start,
    tokenizer(text) {
      const found = find(text)
      if (found) return { type, ...found }
    },
    renderer({ text }) {
      const code = `<code data-math="${display ? 'display' : 'inline'}">${escaped(text)}</code>`
      return display ? `<p>${code}</p>` : code
    },
  }
}

// A formula contains no blank line. A dollar opens a formula only before a character that is not a space. It closes the
// formula only after such a character, and not before a digit, so "$5 and $6" are prices.
const SIGN = String.raw`(?:[^\s$\\]|\\[^\n])`
const DOLLARS = new RegExp(String.raw`^\$(${SIGN}(?:(?:[^$\n\\]|\\[^\n])*${SIGN})?)\$(?!\d)`)
const BLOCKS = [
  [/^ {0,3}\\\[/, /\\\][ \t]*\n/],
  [/^ {0,3}\$\$/, /\$\$[ \t]*\n/],
]
const INLINE = [
  [/^\\\(/, /\\\)/],
  [/^\\\[/, /\\\]/],
  [/^\$\$/, /\$\$/],
]
const blockFormula = (text) => formulaAt(text, BLOCKS)
const FORMULAS = [
  // Marked ends a paragraph at the returned place, and looks for other blocks there. So the formula there must have an
  // end.
  formulas(
    'block',
    (text) =>
      [...untilBlankLine(text).matchAll(/^ {0,3}(?:\\\[|\$\$)/gm)].find(({ index }) => blockFormula(text.slice(index)))
        ?.index,
    blockFormula,
  ),
  formulas(
    'inline',
    (text) => /\\[([]|\$/.exec(text)?.index,
    (text) => {
      const [raw, tex] = DOLLARS.exec(text) ?? []
      return raw ? { raw, text: tex.trim() } : formulaAt(text, INLINE)
    },
  ),
]

const NOTE = String.raw`\[\^([^\]\s^]{1,40})\]`
const NOTE_MARK = new RegExp(`^${NOTE}(?![(:])`)
// A note ends at a blank line or at the next note. Indented lines after a blank line still belong to the note.
const NOTE_TEXT = new RegExp(
  String.raw`^ {0,3}${NOTE}:((?:(?!\n[ \t]*(?:\n|$)|\n {0,3}${NOTE}:)[^])*(?:\n+(?: {4}|\t).*)*)(?:\n|$)`,
)
const NOTE_BEGIN = new RegExp(`^ {0,3}${NOTE}:`, 'm')

/** Footnotes: marks in the text, and notes, which stay where the text has them. `numberNotes` connects the two. */
const FOOTNOTES = [
  {
    name: 'note',
    level: 'block',
    start: (text) => NOTE_BEGIN.exec(untilBlankLine(text))?.index,
    /** @this {any} */
    tokenizer(text) {
      const [raw, id, words] = NOTE_TEXT.exec(text) ?? []
      return raw && { type: 'note', raw, id, tokens: this.lexer.inline(words.trim().replace(/\s*\n\s*/g, '\n')) }
    },
    /** @this {any} */
    renderer({ id, tokens }) {
      return `<p data-note="${escaped(id)}">${this.parser.parseInline(tokens)}</p>`
    },
  },
  {
    name: 'noteMark',
    level: 'inline',
    start: (text) => text.indexOf('[^'),
    tokenizer(text) {
      const [raw, id] = NOTE_MARK.exec(text) ?? []
      return raw && { type: 'noteMark', raw, id }
    },
    renderer: ({ id }) => `<sup data-note="${escaped(id)}"></sup>`,
  },
]

// The most cells in the tables of one text. Each row is filled up to the columns of the head, so few characters may
// become many cells.
export const MAX_CELLS = 20_000

/**
 * A table with more cells than characters, or with more cells than the remaining room, is shown as it was written.
 * @this {any} the tokenizer of marked
 */
function table(source) {
  const { state } = this.lexer
  const found = this.rules.block.table.exec(source)
  if (!found) return undefined
  const columns = found[2].replace(/^\||\| *$/g, '').split('|').length
  const rows = found[3]?.trim() ? found[3].trimEnd().split('\n').length : 0
  const cells = columns * (rows + 1)
  if (cells > found[0].length || cells > state.cells) return { type: 'code', raw: found[0], text: found[0] }
  state.cells -= cells
  return false
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [...FORMULAS, ...FOOTNOTES],
  tokenizer: { table },
  renderer: {
    html: ({ raw }) => (/^<br\s*\/?>$/i.test(raw.trim()) ? '<br>' : escaped(raw)),
    // A picture becomes a link: loading it would tell a foreign server who reads the chat.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
    code: ({ text, lang }) =>
      `<pre><code data-language="${escaped((lang ?? '').split(/\s/)[0])}">${escaped(text)}</code></pre>`,
  },
})

const MAX_PARAGRAPH = 6_000 // characters
const MAX_TIME = 300 // milliseconds to find emphasis and links in one text
const NESTED = /^[ \t]*(?:(?:>|[*+-][ \t]|\d+[.)][ \t])[ \t]*){20}/m // 20 quotes and lists inside each other

/**
 * Returns the top-level blocks of a text. `links` has the link definitions above the text, and receives the definitions
 * in the text. `cells` is the remaining room for cells of tables. Throws RangeError for deep nesting, which would
 * exhaust the stack.
 */
export function blocksOf(text, links, cells = MAX_CELLS) {
  if (NESTED.test(text)) throw new RangeError('nested too deeply')
  const lexer = new Lexer(marked.defaults)
  lexer.state.cells = cells
  Object.assign(lexer.tokens.links, links)
  lexer.blockTokens(text, lexer.tokens)
  const until = performance.now() + MAX_TIME
  for (const { src, tokens } of lexer.inlineQueue) lexInline(lexer, src, tokens, until)
  Object.assign(links, lexer.tokens.links)
  return lexer.tokens
}

/**
 * Finds emphasis. Because marked takes quadratic time, very long paragraphs, and paragraphs after `until`, get no
 * emphasis.
 */
function lexInline(lexer, text, tokens, until) {
  lexer.state.inRawBlock = false
  if (text.length <= MAX_PARAGRAPH && performance.now() < until) lexer.inlineTokens(text, tokens)
  else tokens.push({ type: 'text', raw: text, text, escaped: false })
}

/** Returns the number of cells in the tables of these blocks. */
export function cellsOf(tokens) {
  const cells = ({ header, rows, items, tokens }) =>
    header ? header.length * (rows.length + 1) : cellsOf(items ?? tokens ?? [])
  return tokens.reduce((sum, token) => sum + cells(token), 0)
}

export function nodesOf(tokens) {
  const nodes = globalThis.DOMPurify.sanitize(Parser.parse(tokens, marked.defaults), ALLOWED)
  for (const link of nodes.querySelectorAll('a')) secureLink(link)
  for (const code of nodes.querySelectorAll('pre > code')) code.parentElement.replaceWith(new CodeView(code).element)
  for (const table of nodes.querySelectorAll('table')) wrapTable(table)
  for (const code of nodes.querySelectorAll('[data-math]')) code.replaceWith(formula(code))
  for (const mark of nodes.querySelectorAll('sup')) mark.replaceWith(noteMark(mark.dataset.note))
  for (const note of nodes.querySelectorAll('p[data-note]')) note.replaceWith(noteOf(note))
  return nodes
}

/**
 * Creates the mark of a footnote. It is shown as it was written until its note has come, because it may be anything
 * else.
 */
const noteMark = (id) => h('span', { class: 'note-mark', 'data-note': id }, `[^${id}]`)

function noteOf({ dataset, childNodes }) {
  return h(
    'p',
    { class: 'note', tabindex: -1, 'data-note': dataset.note },
    h('span', {}, `[^${dataset.note}]: `),
    ...childNodes,
  )
}

/** Numbers the footnotes of a text by the order of their marks. A mark becomes a button that leads to its note. */
export function numberNotes(element) {
  const notes = new Map([...element.querySelectorAll('.note')].map((note) => [note.dataset.note, note]))
  const numbers = new Map()
  for (const mark of element.querySelectorAll('.note-mark')) {
    const id = mark.dataset.note
    if (!numbers.has(id)) numbers.set(id, numbers.size + 1)
    if (notes.has(id) && !mark.firstElementChild) mark.replaceChildren(noteButton(numbers.get(id), id))
  }
  for (const [id, note] of notes) if (numbers.has(id)) setText(note.firstElementChild, `${numbers.get(id)}. `)
}

function noteButton(number, id) {
  const lead = ({ currentTarget }) => {
    const note = currentTarget.closest('.prose').querySelector(`.note[data-note="${CSS.escape(id)}"]`)
    note.scrollIntoView({ block: 'nearest' })
    note.focus({ preventScroll: true })
  }
  return h(
    'sup',
    {},
    h('button', { type: 'button', class: 'note-link', 'aria-label': TEXTS.note(number), onclick: lead }, number),
  )
}

function secureLink(link) {
  if (!link.hasAttribute('href')) return link.replaceWith(...link.childNodes)
  Object.assign(link, { target: '_blank', rel: 'noopener noreferrer nofollow', title: link.getAttribute('href') })
}

/** Creates a formula. A formula on a line of its own scrolls sideways. */
function formula({ textContent, dataset }) {
  const display = dataset.math === 'display'
  const more = display ? { tabindex: 0, role: 'group', 'aria-label': TEXTS.math } : {}
  const element = h('span', { class: display ? 'wide formula' : 'formula', dir: 'ltr', ...more })
  showFormula(element, textContent, display)
  return element
}

/** Wraps a table in an element that scrolls sideways, which keys can do, too. */
function wrapTable(table) {
  const around = h('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': TEXTS.table })
  table.replaceWith(around)
  around.append(table)
}

/** A block of code, finished or still growing. */
export class CodeView {
  constructor({ dataset, textContent }) {
    this.language = dataset.language
    this.code = h('code')
    this.text = ''
    const { code: texts } = TEXTS
    const copying = iconButton('copy', texts.copy, () => copy(copying, this.text))
    const wrapping = iconButton('wrap', texts.wrap, () => this.#wrap(wrapping), { 'aria-pressed': 'false' })
    const kind = this.language === 'mermaid' ? texts.diagram : this.language || texts.plain
    const head = h('figcaption', {}, h('span', {}, kind), wrapping, copying)
    const frame = h('pre', { tabindex: 0, 'aria-label': texts.name(this.language ?? ''), role: 'group' }, this.code)
    this.element = h('figure', { class: 'code', dir: 'ltr' }, head, frame)
    this.update(textContent.replace(/\n$/, ''))
  }

  #wrap(button) {
    button.setAttribute('aria-pressed', String(this.element.classList.toggle('wraps')))
  }

  update(text) {
    if (text === this.text && text) return
    this.text = text
    this.code.replaceChildren(highlighted(text, this.language))
  }
}
