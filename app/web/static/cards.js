// A call of a tool: its input as it is written, its progress, its result or error, and how long it took.

import { h, icon, setText } from './dom.js'
import { FileButton, isFile } from './files.js'
import { highlighted, unmasked } from './highlight.js'
import { pretty } from './json_text.js'
import { remarks } from './notes.js'
import { Plain } from './prose.js'

const MOST = 20_000 // characters of an input or a result; more is shown when it is asked for

export class Card {
  /**
   * `ask` makes what a person is shown when the call waits for one; `whole` reads a result that was cut, `file` a file
   * in it.
   */
  constructor(call, { ask, whole, file }) {
    this.ask = ask
    this.whole = whole
    this.file = file
    this.files = []
    this.call = call
    this.resultBlock = null
    this.name = h('span', { class: 'name' }, unmasked(call.name ?? call.type))
    this.state = h('span', { class: 'state' })
    this.time = h('span', { class: 'time' })
    this.brief = h('span', { class: 'brief', dir: 'ltr' })
    this.news = h('span', { class: 'news', dir: 'auto' })
    this.input = h('pre', { class: 'input', tabindex: 0, role: 'group', 'aria-label': 'Input', dir: 'ltr' })
    this.result = h('div', { class: 'result' })
    const summary = h(
      'summary',
      {},
      h('span', { class: 'line' }, this.state, this.name, this.time),
      this.brief,
      this.news,
    )
    this.more = h('details', {}, summary, this.input, this.result)
    this.more.addEventListener('toggle', () => this.#unfold())
    this.returned = h('div', { class: 'files-said' })
    this.wanted = h('div', { class: 'wanted' })
    this.element = h(
      'section',
      { class: 'card', role: 'group', 'aria-label': `Tool ${call.name ?? ''}` },
      this.more,
      this.returned,
      this.wanted,
    )
  }

  /** `result` is its tool_result, `action` what waits for a person, `running` whether the turn has not ended. */
  update(call, { result, action, progress, running }) {
    this.call = call
    this.resultBlock = result
    const state = stateOf(call, result, action, running)
    if (this.element.dataset.state !== state) this.#show(state)
    setText(this.brief, call.open ? ending(call.text) : call.text.slice(0, 200) || '{}')
    setText(this.news, newsOf(state, result, progress))
    setText(this.time, result?.notes?.seconds === undefined ? '' : seconds(result.notes.seconds))
    this.#want(action)
    this.#showFiles(result?.content)
    this.#unfold()
  }

  forget() {
    for (const button of this.files.splice(0)) button.forget()
    this.element.remove()
  }

  #show(state) {
    this.element.dataset.state = state
    const sign = { done: icon('check'), failed: icon('cross'), waiting: icon('hand') }[state]
    this.state.replaceChildren(sign ?? h('span', { class: 'dot' }), h('span', { class: 'unseen' }, WORDS[state]))
  }

  #want(action) {
    if (this.action === action?.input_digest) return
    this.action = action?.input_digest
    this.wanted.replaceChildren(...(action ? [this.ask(action, this.call.text)] : []))
  }

  /** Beneath the folded words: a picture is what somebody wants to see. */
  #showFiles(content) {
    if (this.content === content) return
    this.content = content
    for (const button of this.files.splice(0)) button.forget()
    this.files = (content ?? [])
      .filter(isFile)
      .map((part) => new FileButton({ ...part, text: '', data: part }, this.file))
    this.returned.replaceChildren(...this.files.map((button) => button.element))
  }

  /** What is folded away costs nothing until somebody looks. */
  #unfold() {
    if (!this.more.open) return
    const { text } = this.call
    if (this.shownInput !== text) {
      this.shownInput = text
      this.input.replaceChildren(
        highlighted(pretty(text.slice(0, MOST)) || '{}', 'json'),
        text.length > MOST ? '…' : '',
      )
    }
    const result = this.resultBlock
    if (result && this.shownResult !== result.text) {
      this.shownResult = result.text
      this.result.replaceChildren(...this.#resultParts(result))
    }
  }

  #resultParts(result) {
    const text = new Plain(result.text.slice(0, MOST))
    Object.assign(text.element, { tabIndex: 0, role: 'group', ariaLabel: 'Result' })
    const notes = remarks(result)
    const said = notes.length ? [h('p', { class: 'notes' }, notes.join(' · '))] : []
    const hidden = result.text.length - MOST
    if (hidden > 0)
      return [
        ...said,
        text.element,
        this.#more(text, `Show ${hidden.toLocaleString('en')} more characters`, async () => result.text.slice(MOST)),
      ]
    if (result.notes?.cut)
      return [...said, text.element, this.#more(text, 'Show all that the tool returned', () => this.#rest(result))]
    return [...said, text.element]
  }

  #more(text, label, read) {
    const button = h('button', { type: 'button', class: 'more' }, label)
    button.addEventListener('click', async () => {
      text.append(await read())
      button.remove()
    })
    return button
  }

  async #rest(result) {
    return `\n\n— all of it —\n\n${(await this.whole(result.tool_use_id)).text}`
  }
}

const WORDS = {
  written: 'is being called',
  running: 'runs',
  waiting: 'waits for you',
  done: 'done',
  failed: 'failed',
  cut: 'was not called',
}

function stateOf(call, result, action, running) {
  if (result && !result.open) return result.is_error ? 'failed' : 'done'
  if (action) return 'waiting'
  if (call.open) return 'written'
  if (call.interrupted || !running) return call.data ? 'done' : 'cut'
  return 'running'
}

function newsOf(state, result, progress) {
  if (result) return result.text.slice(0, 200).replace(/\s+/g, ' ')
  return state === 'running' && progress ? progress : (WORDS[state] ?? '')
}

const ending = (text) => (text.length > 60 ? `…${text.slice(-60)}` : text)

export function seconds(value) {
  if (value < 0.001) return '< 1 ms'
  if (value < 1) return `${Math.round(value * 1000)} ms`
  return value < 60 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`
}
