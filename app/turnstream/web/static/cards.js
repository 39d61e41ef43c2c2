// A tool call: its input while the model writes it, its progress, its result or error, and its duration.

import { AppView } from './apps.js'
import { h, icon, setText } from './dom.js'
import { FileButton, isFile } from './files.js'
import { highlighted, prettyJson, unmasked } from './highlight.js'
import { JobBar } from './jobs.js'
import { remarksOf } from './notes.js'
import { Plain } from './prose.js'
import { TEXTS } from './texts.js'

const { cards: texts } = TEXTS

const MAX_SHOWN = 20_000 // characters of an input or a result; a button shows the rest

/** Returns the name of a call. For the generic tool, the name of the called tool, from the input, follows. */
function nameOf(call) {
  if (call.name !== 'call_tool' || call.open) return call.name ?? call.type
  try {
    const { name } = JSON.parse(call.text)
    return typeof name === 'string' ? `${call.name}: ${name.slice(0, 100)}` : call.name
  } catch {
    return call.name
  }
}

export class Card {
  /**
   * `ask` returns the form for a call that waits for a person. `wholeResult` reads the whole of a truncated result, and
   * `readUpload` reads a file. `stop` stops a background call. `readApp` and `propose` are for apps.
   */
  constructor(call, tools) {
    const { ask, wholeResult, readUpload, stop } = tools
    this.ask = ask
    this.wholeResult = wholeResult
    this.readUpload = readUpload
    this.files = []
    this.call = call
    this.resultBlock = null
    this.name = h('span', { class: 'name' })
    this.#showName(nameOf(call))
    this.state = h('span', { class: 'state' })
    this.time = h('span', { class: 'time' })
    this.brief = h('span', { class: 'brief', dir: 'ltr' })
    this.status = h('span', { class: 'news', dir: 'auto' })
    this.input = h('pre', { class: 'input', tabindex: 0, role: 'group', 'aria-label': texts.input, dir: 'ltr' })
    this.result = h('div', { class: 'result' })
    this.data = h('pre', { class: 'input', tabindex: 0, role: 'group', 'aria-label': texts.data, dir: 'ltr' })
    this.moreData = h('details', { class: 'data', hidden: true }, h('summary', {}, texts.dataNote), this.data)
    this.moreData.addEventListener('toggle', () => this.#unfold())
    const summary = h(
      'summary',
      {},
      h('span', { class: 'line' }, this.state, this.name, this.time),
      this.brief,
      this.status,
    )
    this.more = h('details', {}, summary, this.input, this.result, this.moreData)
    this.more.addEventListener('toggle', () => this.#unfold())
    this.returned = h('div', { class: 'files' })
    this.form = h('div', { class: 'action' })
    this.app = tools.readApp ? new AppView(tools) : null
    this.job = new JobBar(call.name ?? '', () => stop(this.call.id))
    this.element = h(
      'section',
      { class: 'card', role: 'group', 'aria-label': texts.name(call.name ?? '') },
      this.more,
      this.job.element,
      this.returned,
      this.app?.element,
      this.form,
    )
  }

  /**
   * `result` is the tool_result of the call, `action` is the action that waits for a person, and `job` is the job of a
   * background call. `running` is whether the turn is still open. `report` is the outcome of a call that the turn did
   * not wait for.
   */
  update(call, { result, action, job, report, progress, preliminary, running }) {
    this.preliminary = running ? preliminary : undefined
    this.call = call
    this.resultBlock = result
    const state = report ? stateOfReport(report) : stateOf(call, result, action, running)
    if (this.element.dataset.state !== state) this.#show(state)
    this.#showName(nameOf(call))
    setText(this.brief, call.open ? ending(call.text) : call.text.slice(0, 200) || '{}')
    setText(this.status, report ? newsOf(report, state) : statusOf(state, result, progress ?? job?.progress))
    this.job.update(state === 'running' ? (report ?? job) : undefined)
    setText(this.time, result?.notes?.seconds === undefined ? '' : seconds(result.notes.seconds))
    this.#showForm(action)
    this.#showFiles(result?.content)
    this.app?.update(call, result)
    this.#unfold()
  }

  remove() {
    this.job.remove()
    this.app?.remove()
    for (const button of this.files.splice(0)) button.remove()
    this.element.remove()
  }

  #showName(name) {
    if (this.shownName === name) return
    this.shownName = name
    this.name.replaceChildren(unmasked(name))
  }

  #show(state) {
    this.element.dataset.state = state
    const sign = { done: icon('check'), failed: icon('cross'), waiting: icon('hand'), stopped: icon('stop') }[state]
    this.state.replaceChildren(sign ?? h('span', { class: 'dot' }), h('span', { class: 'unseen' }, texts.states[state]))
  }

  #showForm(action) {
    if (this.action === action?.input_digest) return
    this.action = action?.input_digest
    this.form.replaceChildren(...(action ? [this.ask(action, this.call.text)] : []))
  }

  /** Shows files beneath the folded details, where a picture is seen without unfolding. */
  #showFiles(content) {
    if (this.content === content) return
    this.content = content
    for (const button of this.files.splice(0)) button.remove()
    this.files = (content ?? [])
      .filter(isFile)
      .map((part) => new FileButton({ ...part, text: '', data: part }, this.readUpload))
    this.returned.replaceChildren(...this.files.map((button) => button.element))
  }

  /** Renders the details once they are unfolded: highlighting every folded input would be slow. */
  #unfold() {
    if (!this.more.open) return
    const { text } = this.call
    if (this.shownInput !== text) {
      this.shownInput = text
      this.input.replaceChildren(
        highlighted(prettyJson(text.slice(0, MAX_SHOWN)) || '{}', 'json'),
        text.length > MAX_SHOWN ? '…' : '',
      )
    }
    const result = this.resultBlock
    if (result && this.shownResult !== result.text) {
      this.shownResult = result.text
      this.result.replaceChildren(...this.#resultParts(result))
    }
    if (!result && this.preliminary !== undefined && this.shownPreliminary !== this.preliminary) {
      this.shownPreliminary = this.preliminary
      const text = new Plain(this.preliminary)
      this.result.replaceChildren(h('p', { class: 'notes' }, texts.preliminary), text.element)
    }
    this.moreData.hidden = result?.data === undefined
    if (this.moreData.open && this.shownData !== result?.data) {
      this.shownData = result?.data
      this.data.replaceChildren(highlighted(JSON.stringify(this.shownData, null, 2).slice(0, MAX_SHOWN), 'json'))
    }
  }

  #resultParts(result) {
    const text = new Plain(result.text.slice(0, MAX_SHOWN))
    Object.assign(text.element, { tabIndex: 0, role: 'group', ariaLabel: texts.result })
    const notes = remarksOf(result)
    const remarks = notes.length ? [h('p', { class: 'notes' }, notes.join(' · '))] : []
    const hidden = result.text.length - MAX_SHOWN
    if (hidden > 0)
      return [
        ...remarks,
        text.element,
        this.#more(text, texts.more(hidden.toLocaleString('en')), async () => result.text.slice(MAX_SHOWN)),
      ]
    if (result.notes?.cut || result.notes?.summarised)
      return [...remarks, text.element, this.#more(text, texts.whole, () => this.#rest(result))]
    return [...remarks, text.element]
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
    return `\n\n${texts.wholeMark}\n\n${(await this.wholeResult(result.tool_use_id)).text}`
  }
}

function stateOf(call, result, action, running) {
  if (result?.notes?.stopped) return 'stopped'
  if (result && !result.open) return result.is_error ? 'failed' : 'done'
  if (action) return 'waiting'
  if (call.open) return 'written'
  if (call.interrupted || !running) return call.data ? 'done' : 'cut'
  return 'running'
}

/**
 * Returns the state of a call that the turn did not wait for. The result of such a call only states that it was
 * started.
 */
function stateOfReport({ state, outcome, delivery }) {
  if (state !== 'settled') return 'running'
  if (outcome === 'refused' || delivery === 'discarded') return 'stopped'
  return outcome === 'ok' ? 'done' : 'failed'
}

function newsOf({ progress, delivery }, state) {
  if (state === 'running') return progress ?? ''
  return delivery ? texts.deliveries[delivery] : texts.undelivered
}

function statusOf(state, result, progress) {
  if (result) return result.text.slice(0, 200).replace(/\s+/g, ' ')
  return state === 'running' && progress ? progress : (texts.states[state] ?? '')
}

const ending = (text) => (text.length > 60 ? `…${text.slice(-60)}` : text)

export function seconds(value) {
  if (value < 0.001) return '< 1 ms'
  if (value < 1) return `${Math.round(value * 1000)} ms`
  return value < 60 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`
}
