// Markdown to nodes. The output of a model is not trusted: HTML in it is shown as text, and the result of the Markdown goes
// through the sanitiser, which is the only place of the page where text becomes HTML.

import { Lexer, Marked, Parser } from './vendor/marked.esm.js'
import './vendor/purify.min.js'
import { copy, h, icon } from './dom.js'
import { highlighted } from './highlight.js'

const ALLOWED = {
  ALLOWED_TAGS:
    'a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong sub sup table tbody td th thead tr ul'.split(
      ' ',
    ),
  ALLOWED_ATTR: ['align', 'data-language', 'href', 'start'],
  ADD_URI_SAFE_ATTR: ['align', 'data-language', 'start'],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
}

const escaped = (text) =>
  text.replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign])

const marked = new Marked({
  gfm: true,
  breaks: true,
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
  return nodes
}

function secureLink(link) {
  if (!link.hasAttribute('href')) return link.replaceWith(...link.childNodes)
  Object.assign(link, { target: '_blank', rel: 'noopener noreferrer nofollow', title: link.getAttribute('href') })
}

/** Wraps a table in an element that scrolls sideways, by keys too. */
function wrapTable(table) {
  const around = h('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': 'Table' })
  table.replaceWith(around)
  around.append(table)
}

/** A block of code, finished or still growing. */
export class CodeView {
  constructor({ dataset, textContent }) {
    this.language = dataset.language
    this.code = h('code')
    this.text = ''
    const button = h(
      'button',
      { type: 'button', class: 'quiet', 'aria-label': 'Copy code', title: 'Copy code' },
      icon('copy'),
    )
    button.addEventListener('click', () => copy(button, this.text))
    const head = h('figcaption', {}, h('span', {}, this.language || 'text'), button)
    const frame = h('pre', { tabindex: 0, 'aria-label': `Code ${this.language ?? ''}`, role: 'group' }, this.code)
    this.element = h('figure', { class: 'code', dir: 'ltr' }, head, frame)
    this.update(textContent.replace(/\n$/, ''))
  }

  update(text) {
    if (text === this.text && text) return
    this.text = text
    this.code.replaceChildren(highlighted(text, this.language))
  }
}
