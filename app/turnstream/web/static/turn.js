// Shows one turn on the page, with its buttons.

import { askForm } from './asks.js'
import { Blocks } from './blocks.js'
import { seconds } from './cards.js'
import { copy, h, iconButton, menu, sends, setText } from './dom.js'
import { failureOf } from './failures.js'
import { amount } from './models.js'
import { degradedText } from './notes.js'
import { TEXTS } from './texts.js'
import { timeline } from './timeline.js'
import { hasEnded, joined } from './turnstream.js'

const { turn: texts } = TEXTS
const COPIES = { class: 'copies' } // buttons that need the extension `fork`

export class TurnView {
  /**
   * `actions` of the buttons: answer, wholeResult, readUpload, regenerate, anotherModel, goOn, edit, choose, cancel, cancelCall,
   * branch, cut, fork, remove, appCalls; and `why`, which returns the reasons why a turn makes no progress.
   */
  constructor(turn, actions) {
    this.actions = actions
    this.content = h('div', { class: 'content' })
    this.stage = h('span', { class: 'stage' })
    this.why = h('p', { class: 'hint why', role: 'status' })
    this.steers = h('div', { class: 'pending-steers' })
    this.failure = h('div', { class: 'failure', hidden: true })
    this.degraded = h('p', { class: 'hint' })
    this.siblings = h('span', { class: 'siblings' })
    this.buttons = h('span', { class: 'buttons' })
    this.figures = h('span', { class: 'figures' })
    this.bar = h('footer', { class: 'bar-of-turn' }, this.stage, this.siblings, this.buttons, this.figures)
    this.timeline = h('section', { class: 'timeline', role: 'group', 'aria-label': texts.timeline, hidden: true })
    const label = turn.role === 'user' ? texts.question : texts.answer
    this.element = h(
      'article',
      { class: `turn ${turn.role}`, 'data-turn': turn.id, 'aria-label': label },
      this.content,
      this.steers,
      this.why,
      this.failure,
      this.degraded,
      this.bar,
      this.timeline,
    )
    this.blocks = new Blocks(this.content, {
      ask: (action, text) => this.#ask(action, text),
      wholeResult: (call) => actions.wholeResult(this.turn, call),
      readUpload: actions.readUpload,
      readApp: actions.readApp,
      propose: actions.propose,
      appCalls: (call) => actions.appCalls(this.turn, call),
      stop: (call) => actions.cancelCall(this.turn, call),
    })
    this.stageText = ''
  }

  update(turn) {
    this.turn = turn
    const ended = hasEnded(turn)
    this.element.dataset.status = turn.status
    this.#showAuthor(turn)
    this.blocks.update(turn, !ended)
    this.#showSteers(ended ? [] : pendingSteersOf(turn))
    setText(this.stage, ended ? '' : this.#stage(turn))
    this.#moved(ended)
    this.#showFailure(ended ? failureOf(turn) : null)
    setText(this.degraded, degradedText(turn.degraded ?? []))
    const shape = `${ended} ${turn.siblings}`
    if (this.shape !== shape) this.#drawButtons(shape, turn, ended)
    setText(this.figures, ended ? figuresOf(turn) : '')
    if (!this.timeline.hidden) this.#draw()
  }

  /** Shows the author of a message that the owner did not write. */
  #showAuthor({ role, author, blocks }) {
    const name = author ?? blocks[0]?.notes?.author // in the stream, only the block has the author
    if (role !== 'user' || !name || this.author) return
    this.author = h('p', { class: 'hint author', dir: 'auto' }, texts.author(name))
    this.element.prepend(this.author)
  }

  /** Called when the turn has made progress. If no progress follows for a while, asks the server for the reason. */
  #moved(ended) {
    clearTimeout(this.timer)
    this.timer = undefined // makes a pending response of `why` obsolete
    setText(this.why, '')
    if (!ended && !this.turn.actions.length) this.timer = setTimeout(() => this.#askWhy(), QUIET)
  }

  async #askWhy() {
    const { turn, timer } = this
    const { reasons } = document.hidden ? { reasons: [] } : await this.actions.why(turn).catch(() => ({ reasons: [] }))
    if (timer !== this.timer) return // the turn has made progress meanwhile
    setText(this.why, reasons[0] ?? '')
    this.timer = setTimeout(() => this.#askWhy(), QUIET)
  }

  remove() {
    clearTimeout(this.timer)
    this.timer = undefined
    this.blocks.remove()
    this.element.remove()
  }

  /** Shows a notice: an event that is not stored. */
  notice({ event, data }) {
    if (event === 'tool_progress') this.blocks.setProgress(data)
    if (event === 'tool_output') this.blocks.setPreliminary(data)
    if (event === 'status' && data.stage) this.stageText = texts.stages[data.stage] ?? ''
    if (data.stage === 'waiting') this.stageText = texts.rateLimit(Math.ceil(data.seconds))
    if (event === 'retry') this.stageText = texts.retry(data.message, data.model, Math.ceil(data.seconds))
  }

  #showFailure(failure) {
    const shape = JSON.stringify(failure)
    if (shape === this.shownFailure) return
    this.shownFailure = shape
    this.failure.hidden = !failure
    const { text, bad, ways } = failure ?? { text: '', bad: false, ways: [] }
    const actions = {
      again: () => this.actions.regenerate(this.turn),
      goOn: () => this.actions.goOn(this.turn),
      anotherModel: () => this.actions.anotherModel(this.turn),
    }
    const buttons = ways.map((way) => h('button', { type: 'button', onclick: actions[way] }, TEXTS.failures[way]))
    this.failure.replaceChildren(
      h('p', { class: bad ? 'trouble' : 'hint' }, text),
      ...(buttons.length ? [h('div', { class: 'choices' }, buttons)] : []),
    )
  }

  #showSteers(steers) {
    if (String(steers) === this.shownSteers) return
    this.shownSteers = String(steers)
    this.steers.replaceChildren(...steers.map((text) => h('div', { class: 'user-text plain', dir: 'auto' }, text)))
  }

  #stage(turn) {
    if (turn.actions.length) return texts.waiting
    if (turn.status === 'queued' && !turn.blocks.length) return texts.queued
    const last = turn.blocks.at(-1)
    if (last?.open && last.type === 'thinking') return '' // the block itself shows this
    if (last?.open) return texts.stages.streaming
    if (turn.jobs?.length) return texts.jobs(turn.jobs.length)
    return this.stageText || texts.working
  }

  #drawButtons(shape, turn, ended) {
    this.shape = shape
    this.siblings.replaceChildren(...this.#siblingArrows(turn))
    const stop = () => iconButton('stop', texts.stop, () => this.actions.cancel(turn), { class: 'quiet stop' })
    const buttons = ended ? this.#endedButtons(turn) : [stop()]
    this.buttons.replaceChildren(...buttons)
  }

  #siblingArrows({ id, siblings, role }) {
    if (!siblings || siblings.length < 2) return []
    const place = siblings.indexOf(id)
    const arrow = (name, label, other) =>
      iconButton(name, label, () => this.actions.choose(other), { disabled: !other })
    const labels = role === 'user' ? texts.questions : texts.answers
    return [
      arrow('left', labels.previous, siblings[place - 1]),
      h('span', { class: 'place' }, `${place + 1} / ${siblings.length}`),
      arrow('right', labels.next, siblings[place + 1]),
    ]
  }

  #endedButtons(turn) {
    const copying = iconButton('copy', texts.copy, () => copy(copying, textOf(this.turn)))
    const ways = [
      [texts.fork, () => this.actions.fork(this.turn), COPIES],
      [texts.remove, () => this.actions.remove(this.turn)],
    ]
    if (turn.role === 'user')
      return [copying, iconButton('edit', texts.edit, () => this.edit()), menu(texts.more, ways)]
    if (turn.blocks.length > 1) ways.unshift([texts.cut, () => this.#offerCuts(), COPIES])
    ways.unshift([texts.branch, () => this.actions.branch(this.turn)])
    ways.unshift([texts.anotherModel, () => this.actions.anotherModel(this.turn)])
    const details = iconButton('clock', texts.timeline, () => this.#toggle(details), { 'aria-expanded': 'false' })
    return [
      copying,
      iconButton('again', texts.again, () => this.actions.regenerate(this.turn)),
      details,
      menu(texts.more, ways),
    ]
  }

  /** Puts a button after each block. It copies the turn up to this block, as a sibling of the turn. */
  #offerCuts() {
    const cuts = this.content.querySelectorAll('.cut')
    for (const cut of cuts) cut.remove()
    if (cuts.length) return
    for (const block of /** @type {NodeListOf<HTMLElement>} */ (this.content.querySelectorAll('[data-block]'))) {
      const cut = () => {
        for (const other of this.content.querySelectorAll('.cut')) other.remove()
        this.actions.cut(this.turn, endOf(this.turn, Number(block.dataset.block)))
      }
      block.after(h('button', { type: 'button', class: 'cut', onclick: cut }, texts.cutHere))
    }
  }

  #toggle(button) {
    this.timeline.hidden = !this.timeline.hidden
    button.setAttribute('aria-expanded', String(!this.timeline.hidden))
    if (this.timeline.hidden) return
    this.#draw()
    this.timeline.scrollIntoView({ block: 'nearest' })
  }

  #draw() {
    this.timeline.replaceChildren(...timeline(this.turn))
  }

  /** Opens the text of a user turn in a field. The edited text is sent as a sibling of the turn. */
  edit() {
    if (this.editor) return
    const words = h('textarea', { 'aria-label': texts.editing, rows: 3 })
    words.value = textOf(this.turn)
    const close = () => {
      this.editor.replaceWith(this.content)
      this.editor = null
    }
    const send = async (event) => {
      event.preventDefault()
      if (words.value.trim() && (await this.actions.edit(this.turn, words.value.trim()))) close()
    }
    const keys = (event) => {
      if (event.key === 'Escape') close()
      if (sends(event)) send(event)
    }
    this.editor = h(
      'form',
      { class: 'editor', onsubmit: send, onkeydown: keys },
      words,
      h(
        'div',
        { class: 'choices' },
        h('button', { class: 'primary' }, texts.send),
        h('button', { type: 'button', onclick: close }, TEXTS.keep),
      ),
    )
    this.content.replaceWith(this.editor)
    words.focus()
  }

  #ask(action, text) {
    return askForm(action, text, (decision) => this.actions.answer(this.turn, decision))
  }
}

const QUIET = 10_000 // milliseconds

/** Returns the index of a block, or for a call the index of its result, because both are shown together. */
function endOf({ blocks }, index) {
  const call = blocks[index]
  const result = blocks.find(({ tool_use_id, round }) => call.id && tool_use_id === call.id && round === call.round)
  return result?.index ?? index
}

export function textOf(turn) {
  return joined(turn.blocks)
    .filter((block) => block.type === 'text')
    .map((block) => block.text)
    .join('\n\n')
}

/** Returns the steers that were sent to the turn and are not blocks of the turn yet. */
function pendingSteersOf({ pendingSteers = [], blocks }) {
  const applied = blocks.filter((block) => block.type === 'user_text').map((block) => block.text)
  return pendingSteers.filter((text) => !applied.includes(text))
}

function figuresOf({ role, created_at, ended_at, usage, model, cost }) {
  if (role === 'user') return timeOf(created_at)
  if (!created_at || !ended_at) return ''
  const took = seconds((Date.parse(ended_at) - Date.parse(created_at)) / 1000)
  const tokens = usage.output_tokens && TEXTS.tokens(usage.output_tokens)
  return [model, took, tokens, cost && TEXTS.models.cost(amount(cost))].filter(Boolean).join(' · ')
}

/** Formats the time of day, and the date if it is not today, in the format of this browser. */
function timeOf(moment) {
  const date = new Date(moment)
  const today = date.toDateString() === new Date().toDateString()
  return date.toLocaleString([], { timeStyle: 'short', ...(!today && { dateStyle: 'medium' }) })
}
