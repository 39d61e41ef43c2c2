// The blocks of a turn on the page: prose, folded thinking, and cards of calls with their results inside.

import { Card } from './cards.js'
import { h, icon, setText } from './dom.js'
import { FileButton, isFile } from './files.js'
import { highlighted, prettyJson } from './highlight.js'
import { asideOf } from './notes.js'
import { Plain, Prose } from './prose.js'
import { TEXTS } from './texts.js'
import { joined } from './turnstream.js'

const { blocks: texts } = TEXTS

export class Blocks {
  constructor(element, tools) {
    this.element = element
    this.tools = tools
    this.views = []
    this.progress = new Map()
    this.preliminary = new Map()
  }

  /** Shows the blocks of the turn. A block that was reset is removed, and a block that has grown is extended. */
  update(turn, running) {
    const blocks = joined(turn.blocks)
    this.role = turn.role
    const changed = this.views.findIndex((view, index) => !blocks[index] || !view.continuesIn(blocks[index]))
    if (changed >= 0) this.remove(changed)
    const results = resultsOf(blocks)
    const actions = new Map(turn.actions.map((action) => [action.tool_use_id, action]))
    const jobs = new Map(turn.jobs?.map((job) => [job.tool_use_id, job]))
    const reports = new Map(turn.reports?.map((report) => [report.job, report]))
    blocks.forEach((block, index) => {
      this.views[index] ??= this.#add(block)
      const result = results.get(`${block.round} ${block.id}`)
      const call = {
        result,
        report: reports.get(result?.notes?.job),
        action: actions.get(block.id),
        job: jobs.get(block.id),
        progress: this.progress.get(block.id),
        preliminary: this.preliminary.get(block.id),
      }
      this.views[index].update(block, { ...call, running, turn: turn.id })
    })
  }

  setProgress({ tool_use_id, message }) {
    this.progress.set(tool_use_id, message)
  }

  /** Shows the result of a running tool so far. */
  setPreliminary({ tool_use_id, text }) {
    this.preliminary.set(tool_use_id, text)
    this.progress.set(tool_use_id, text.trimEnd().split('\n').at(-1))
  }

  /** Removes the blocks from `index` on. */
  remove(index = 0) {
    for (const view of this.views.splice(index)) view.remove()
    for (const group of this.element.querySelectorAll(':scope > :is(.calls, .files):empty')) group.remove()
  }

  #add(block) {
    const view = this.role === 'user' && block.type === 'text' ? new UserView() : viewOf(block, this.tools)
    if (view.element) {
      this.#groupFor(block.type).append(view.element)
      view.element.dataset.block = block.index
    }
    return view
  }

  /**
   * Returns the element to append to: consecutive calls share a group, and consecutive files share a group, side by
   * side.
   */
  #groupFor(type) {
    if (!isCall(type) && !isFile({ type })) return this.element
    const name = isCall(type) ? 'calls' : 'files'
    const last = this.element.lastElementChild
    if (last?.classList.contains(name)) return last
    const group = h('div', { class: name })
    this.element.append(group)
    return group
  }
}

const isCall = (type) => type.endsWith('tool_use')

function resultsOf(blocks) {
  const results = blocks.filter((block) => block.type === 'tool_result')
  return new Map(results.map((block) => [`${block.round} ${block.tool_use_id}`, block]))
}

function viewOf(block, tools) {
  if (block.type === 'text') return new TextView()
  if (block.type === 'thinking') return new ThinkingView()
  if (block.type === 'user_text') return new UserView()
  if (block.type === 'tool_result') return new Hidden()
  if (isFile(block) && block.data?.source) return new FileView(block, tools)
  if (asideOf(block)) return new AsideView()
  return isCall(block.type) ? new CallView(block, tools) : new UnknownView(block)
}

class View {
  /** @type {any} */
  element = null

  update(block, more) {
    this.block = block
    this.text = block.text
    this.show(block, more)
  }

  /** @param {any} _block @param {any} _more */
  show(_block, _more) {}

  /** Whether `block` is the displayed block, either unchanged or with more text. */
  continuesIn(block) {
    return (
      this.block === block ||
      (this.block.type === block.type && this.block.round === block.round && block.text.startsWith(this.text))
    )
  }

  remove() {
    this.element?.remove()
  }
}

class TextView extends View {
  prose = new Prose()
  element = this.prose.element

  show({ text, open, interrupted }, { running }) {
    this.prose.update(text, Boolean(open || (interrupted && running))) // an interrupted text may continue
  }
}

class ThinkingView extends View {
  label = h('span')
  content = new Plain('')
  shown = 0
  element = h('details', { class: 'thinking' }, h('summary', {}, this.label), this.content.element)

  constructor() {
    super()
    this.element.addEventListener('toggle', () => this.#extend())
  }

  show(block) {
    setText(this.label, block.open ? texts.thinking : texts.thought)
    this.#extend()
  }

  #extend() {
    if (!this.element.open || !this.block) return
    this.content.append(this.block.text.slice(this.shown))
    this.shown = this.block.text.length
  }
}

/** Text from the user, in a user turn or as a steer in an answer. It is shown as it was written, without Markdown. */
class UserView extends View {
  content = new Plain('')
  element = h('div', { class: 'user-text', dir: 'auto' }, this.content.element)
  shown = 0

  show({ text }) {
    this.content.append(text.slice(this.shown))
    this.shown = text.length
  }
}

/** A result has no element of its own: it is shown in the card of its call. */
class Hidden extends View {}

class CallView extends View {
  constructor(block, tools) {
    super()
    this.card = new Card(block, tools)
    this.element = this.card.element
  }

  show(block, call) {
    this.card.update(block, call)
  }

  remove() {
    this.card.remove()
  }
}

class FileView extends View {
  constructor(block, { readUpload }) {
    super()
    this.button = new FileButton(block, readUpload)
    this.element = this.button.element
  }

  remove() {
    this.button.remove()
  }
}

/** A note that the server wrote between the blocks: one line, with folded facts. */
class AsideView extends View {
  sign = h('span')
  label = h('span', { dir: 'auto' })
  content = new Plain('')
  facts = h('dl', { class: 'facts' })
  element = h(
    'details',
    { class: 'thinking aside' },
    h('summary', {}, this.sign, this.label),
    this.content.element,
    this.facts,
  )
  shown = 0

  show(block, { turn }) {
    const { line, sign, text, facts } = asideOf(block, turn)
    setText(this.label, line)
    this.sign.replaceChildren(...(sign ? [icon(sign)] : []))
    this.content.append(text.slice(this.shown))
    this.shown = text.length
    this.facts.replaceChildren(...facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))))
  }
}

/** A block of a kind that this page does not know. Its text is shown, or its data as JSON. */
class UnknownView extends View {
  constructor({ type }) {
    super()
    this.content = h('pre', { class: 'input', tabindex: 0, role: 'group', 'aria-label': type, dir: 'ltr' })
    const label = type === 'redacted_thinking' ? texts.hidden : type.replaceAll('_', ' ')
    this.element = h('details', { class: 'thinking' }, h('summary', {}, h('span', {}, label)), this.content)
  }

  show(block) {
    const text = block.text || JSON.stringify(block.data ?? {})
    this.content.replaceChildren(highlighted(prettyJson(text.slice(0, 20_000)), 'json'))
  }
}
