// Markdown to nodes. The output of a model is not trusted: HTML in it is shown as text, and the result of the Markdown goes
// through the sanitiser, which is the only place of the page where text becomes HTML.

import { Lexer, Marked, Parser } from './vendor/marked.esm.js'
import './vendor/purify.min.js'
import { copy, h, iconButton } from './dom.js'
import { highlighted } from './highlight.js'
import { showFormula } from './math.js'
import { TEXTS } from './texts.js'

const ALLOWED = {
  ALLOWED_TAGS:
    'a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong sub sup table tbody td th thead tr ul'.split(
      ' ',
    ),
  ALLOWED_ATTR: ['align', 'data-language', 'data-math', 'href', 'start'],
  ADD_URI_SAFE_ATTR: ['align', 'data-language', 'data-math', 'start'],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
}

const escaped = (text) =>
  text.replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign])

/**
 * A tokenizer of formulas. `level` is that of marked. `opening` finds where one may begin, `whole` is one, from its
 * beginning.
 */
function formulas(level, opening, whole) {
  const display = level === 'block'
  return {
    name: `${level}Formula`,
    level,
    start: (text) => opening.exec(text)?.index,
    tokenizer(text) {
      const found = whole.exec(text)
      if (found) return { type: `${level}Formula`, raw: found[0], text: found.slice(1).find(Boolean)?.trim() ?? '' }
    },
    renderer({ text }) {
      const code = `<code data-math="${display ? 'display' : 'inline'}">${escaped(text)}</code>`
      return display ? `<p>${code}</p>` : code
    },
  }
}

// Within a formula is no blank line. A dollar opens one before what is no space, and closes it behind what is no space and
// before what is no digit: so "$5 and $6" are prices.
const TEX = String.raw`((?:[^\n]|\n(?![ \t]*\n)){1,4000}?)`
const SIGN = String.raw`(?:[^\s$\\]|\\[^\n])`
const DOLLARS = String.raw`\$(${SIGN}(?:(?:[^$\n\\]|\\[^\n])*${SIGN})?)\$(?!\d)`
const FORMULAS = [
  formulas(
    'block',
    /^ {0,3}(?:\\\[|\$\$)/m,
    new RegExp(String.raw`^ {0,3}(?:\\\[${TEX}\\\]|\$\$${TEX}\$\$)[ \t]*(?:\n+|$)`),
  ),
  formulas('inline', /\\[([]|\$/, new RegExp(String.raw`^(?:\\\(${TEX}\\\)|\\\[${TEX}\\\]|\$\$${TEX}\$\$|${DOLLARS})`)),
]

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: FORMULAS,
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
const NESTED = /^[ \t]*(?:(?:>|[*+-][ \t]|\d+[.)][ \t])[ \t]*){20}/m // 20 quotes and lists inside each other

/**
 * The top-level blocks of a text. `links` holds the link definitions above it, and receives those in it. Throws RangeError
 * for deep nesting, which would exhaust the stack.
 */
export function blocksOf(text, links) {
  if (NESTED.test(text)) throw new RangeError('nested too deeply')
  const lexer = new Lexer(marked.defaults)
  Object.assign(lexer.tokens.links, links)
  lexer.blockTokens(text, lexer.tokens)
  for (const { src, tokens } of lexer.inlineQueue) lexInline(lexer, src, tokens)
  Object.assign(links, lexer.tokens.links)
  return lexer.tokens
}

/** marked finds emphasis in quadratic time, so very long paragraphs are shown without it. */
function lexInline(lexer, text, tokens) {
  lexer.state.inRawBlock = false
  if (text.length <= MAX_PARAGRAPH) lexer.inlineTokens(text, tokens)
  else tokens.push({ type: 'text', raw: text, text, escaped: false })
}

export function nodesOf(tokens) {
  const nodes = globalThis.DOMPurify.sanitize(Parser.parse(tokens, marked.defaults), ALLOWED)
  for (const link of nodes.querySelectorAll('a')) secureLink(link)
  for (const code of nodes.querySelectorAll('pre > code')) code.parentElement.replaceWith(new CodeView(code).element)
  for (const table of nodes.querySelectorAll('table')) wrapTable(table)
  for (const code of nodes.querySelectorAll('[data-math]')) code.replaceWith(formula(code))
  return nodes
}

function secureLink(link) {
  if (!link.hasAttribute('href')) return link.replaceWith(...link.childNodes)
  Object.assign(link, { target: '_blank', rel: 'noopener noreferrer nofollow', title: link.getAttribute('href') })
}

/** A formula; one on a line of its own scrolls sideways. */
function formula({ textContent, dataset }) {
  const display = dataset.math === 'display'
  const more = display ? { tabindex: 0, role: 'group', 'aria-label': TEXTS.math } : {}
  const element = h('span', { class: display ? 'wide formula' : 'formula', dir: 'ltr', ...more })
  showFormula(element, textContent, display)
  return element
}

/** Wraps a table in an element that scrolls sideways, by keys too. */
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
    const head = h('figcaption', {}, h('span', {}, this.language || texts.plain), wrapping, copying)
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
