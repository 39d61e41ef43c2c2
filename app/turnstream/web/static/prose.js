// Shows text that grows. Finished blocks of the Markdown are never changed; only the last block is rendered again, so
// that the ten-thousandth word costs as much as the tenth.

import { h, setText } from './dom.js'
import { blocksOf, cellsOf, CodeView, MAX_CELLS, nodesOf, numberNotes } from './markdown.js'
import { TEXTS } from './texts.js'

const { prose: texts } = TEXTS

const MAX_BLOCK = 64_000 // characters; a longer block is shown as plain text
const CHUNK = 8_000
const MAX_SHOWN = 300_000 // characters of one text; a button shows more

export class Prose {
  constructor() {
    this.tail = h('div', { class: 'tail' })
    this.element = h('div', { class: 'prose', dir: 'auto' }, this.tail)
    this.links = {}
    this.cells = MAX_CELLS // how many cells later tables may still have
    this.rest = '' // the text of the blocks that are not settled
    this.taken = 0 // characters of the text that were rendered
    this.limit = MAX_SHOWN
    this.plain = null
    this.notes = false // whether there is a footnote
    /** @type {CodeView | null} */
    this.code = null
    this.button = null
  }

  /** Shows `text`, which extends the text that was shown before. */
  update(text, open) {
    const end = Math.min(text.length, this.limit)
    if (end === this.taken && open === this.open) return this.#offerMore(text)
    this.open = open
    this.rest += text.slice(this.taken, end).replaceAll('\r', '')
    this.taken = end
    this.#render()
    this.#offerMore(text)
  }

  #render() {
    if (this.plain || (this.rest.length > 4 * MAX_BLOCK && this.open)) return this.#extend()
    try {
      this.#renderMarkdown()
    } catch (error) {
      if (!(error instanceof RangeError)) throw error
      this.#extend()
    }
  }

  #renderMarkdown() {
    if (!this.rest) return
    const tokens = blocksOf(this.rest, this.links, this.cells)
    const settled = this.open ? settledOf(tokens) : tokens.length
    if (settled) this.#settle(tokens.slice(0, settled))
    const last = tokens.slice(settled)
    if (this.rest.length > MAX_BLOCK) return this.#extend()
    if (!this.#extendCode(last)) this.tail.replaceChildren(nodesOf(last))
    this.notes ||= tokens.some(({ type }) => type === 'note')
    if (this.notes) numberNotes(this.element)
  }

  #settle(tokens) {
    const length = tokens.reduce((sum, token) => sum + token.raw.length, 0)
    this.cells -= cellsOf(tokens)
    if (this.code) tokens = this.#settleCode(tokens)
    for (const token of tokens) {
      if (token.raw.length > MAX_BLOCK) this.tail.before(new Plain(token.raw).element)
      else this.tail.before(nodesOf([token]))
    }
    this.tail.replaceChildren()
    this.rest = this.rest.slice(length)
  }

  /** Extends a block of code in place, so that a selection in it survives. */
  #extendCode(tokens) {
    const code = tokens.length === 1 && tokens[0].type === 'code' ? tokens[0] : null
    if (!code) {
      this.code = null
      return false
    }
    const language = (code.lang ?? '').split(/\s/)[0]
    if (this.code && this.code.language === language) this.code.update(code.text)
    else {
      this.code = new CodeView({ dataset: { language }, textContent: code.text })
      this.tail.replaceChildren(this.code.element)
    }
    return true
  }

  #settleCode([first, ...others]) {
    const code = /** @type {CodeView} */ (this.code)
    this.code = null
    if (first.type !== 'code') return [first, ...others]
    code.update(first.text)
    this.tail.before(code.element)
    return others
  }

  /** Shows the rest as plain text until the text ends: a block of this size is not parsed as Markdown. */
  #extend() {
    if (!this.plain) {
      this.code = null
      this.plain = new Plain('')
      this.tail.replaceChildren(this.plain.element)
    }
    this.plain.append(this.rest)
    this.rest = ''
  }

  #offerMore(text) {
    const more = text.length - this.limit
    if (more <= 0) return this.button?.remove()
    this.button ??= h('button', { type: 'button', class: 'more' })
    this.button.onclick = () => {
      this.limit += MAX_SHOWN
      this.update(text, this.open)
    }
    setText(this.button, texts.more(more.toLocaleString('en')))
    if (!this.button.isConnected) this.element.append(this.button)
  }
}

/** Returns how many tokens no later text can change: all except the last token and the blank lines after it. */
function settledOf(tokens) {
  let last = tokens.length - 1
  while (last > 0 && tokens[last].type === 'space') last--
  return Math.max(last, 0)
}

/** Plain text in chunks, so that the browser lays out only the last chunk when the text grows. */
export class Plain {
  constructor(text) {
    this.element = h('div', { class: 'plain', dir: 'auto' })
    this.last = null
    this.append(text)
  }

  append(text) {
    for (let start = 0; start < text.length;) {
      if (!this.last || this.last.data.length >= CHUNK) {
        this.last = new Text()
        this.element.append(h('span', {}, this.last))
      }
      const end = start + CHUNK - this.last.data.length
      this.last.appendData(text.slice(start, end))
      start = end
    }
  }
}
