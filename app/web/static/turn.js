// One turn on the page, and what can be done with it.

import { askFor } from './asks.js'
import { Blocks } from './blocks.js'
import { seconds } from './cards.js'
import { copy, h, iconButton, setText } from './dom.js'
import { timeline } from './timeline.js'
import { hasEnded } from './turnstream.js'

export class TurnView {
  /** `acts` are what the buttons do: answer, whole, file, regenerate, edit, choose, cancel. */
  constructor(turn, acts) {
    this.acts = acts
    this.content = h('div', { class: 'content' })
    this.stage = h('span', { class: 'stage' })
    this.unheard = h('div', { class: 'unheard' })
    this.trouble = h('p', { class: 'trouble' })
    this.siblings = h('span', { class: 'siblings' })
    this.buttons = h('span', { class: 'buttons' })
    this.figures = h('span', { class: 'figures' })
    this.bar = h('footer', { class: 'bar-of-turn' }, this.stage, this.siblings, this.buttons, this.figures)
    this.lines = h('section', { class: 'timeline', role: 'group', 'aria-label': 'Timeline', hidden: true })
    const label = turn.role === 'user' ? 'You' : 'Answer'
    this.element = h(
      'article',
      { class: `turn ${turn.role}`, 'data-turn': turn.id, 'aria-label': label },
      this.content,
      this.unheard,
      this.trouble,
      this.bar,
      this.lines,
    )
    this.blocks = new Blocks(this.content, {
      ask: (action, text) => this.#ask(action, text),
      whole: (call) => acts.whole(this.turn, call),
      file: acts.file,
    })
    this.stageWord = ''
  }

  update(turn) {
    this.turn = turn
    const ended = hasEnded(turn)
    this.element.dataset.status = turn.status
    this.blocks.update(turn, !ended)
    this.#showUnheard(ended ? [] : unheardOf(turn))
    setText(this.stage, ended ? '' : this.#stage(turn))
    setText(this.trouble, troubleOf(turn))
    const shape = `${ended} ${turn.siblings}`
    if (this.shape !== shape) this.#furnish(shape, turn, ended)
    setText(this.figures, ended && turn.role === 'assistant' ? figuresOf(turn) : '')
    if (!this.lines.hidden) this.#draw()
  }

  forget() {
    this.blocks.forget()
    this.element.remove()
  }

  /** A passing word about the turn. */
  notice({ event, data }) {
    if (event === 'tool_progress') this.blocks.tell(data)
    if (event === 'status' && data.stage) this.stageWord = STAGES[data.stage] ?? ''
    if (event === 'retry') this.stageWord = `The model is away. Trying again in ${Math.ceil(data.seconds)} s`
  }

  #showUnheard(texts) {
    if (String(texts) === this.waiting) return
    this.waiting = String(texts)
    this.unheard.replaceChildren(...texts.map((text) => h('div', { class: 'spoken plain', dir: 'auto' }, text)))
  }

  #stage(turn) {
    if (turn.actions.length) return 'Waiting for you'
    if (turn.status === 'queued' && !turn.blocks.length) return 'Waiting for its turn'
    const last = turn.blocks.at(-1)
    if (last?.open) return last.type === 'thinking' ? 'Thinking' : 'Writing'
    return this.stageWord || 'Working'
  }

  #furnish(shape, turn, ended) {
    this.shape = shape
    this.siblings.replaceChildren(...this.#arrows(turn))
    const buttons = ended
      ? this.#doneButtons(turn)
      : [iconButton('stop', 'Stop this answer', () => this.acts.cancel(turn))]
    this.buttons.replaceChildren(...buttons)
  }

  #arrows({ id, siblings, role }) {
    if (!siblings || siblings.length < 2) return []
    const place = siblings.indexOf(id)
    const arrow = (name, label, other) => iconButton(name, label, () => this.acts.choose(other), { disabled: !other })
    const what = role === 'user' ? 'question' : 'answer'
    return [
      arrow('left', `Previous ${what}`, siblings[place - 1]),
      h('span', { class: 'place' }, `${place + 1} / ${siblings.length}`),
      arrow('right', `Next ${what}`, siblings[place + 1]),
    ]
  }

  #doneButtons(turn) {
    const copying = iconButton('copy', 'Copy', () => copy(copying, textOf(this.turn)))
    if (turn.role === 'user') return [copying, iconButton('edit', 'Edit', () => this.edit())]
    const details = iconButton('clock', 'Timeline', () => this.#toggle(details), { 'aria-expanded': 'false' })
    return [copying, iconButton('again', 'Answer again', () => this.acts.regenerate(this.turn)), details]
  }

  #toggle(button) {
    this.lines.hidden = !this.lines.hidden
    button.setAttribute('aria-expanded', String(!this.lines.hidden))
    if (this.lines.hidden) return
    this.#draw()
    this.lines.scrollIntoView({ block: 'nearest' })
  }

  #draw() {
    this.lines.replaceChildren(...timeline(this.turn))
  }

  /** The words of a user turn in a field; what is sent becomes a sibling. */
  edit() {
    if (this.editor) return
    const words = h('textarea', { 'aria-label': 'Edit what you said', rows: 3 })
    words.value = textOf(this.turn)
    const close = () => {
      this.editor.replaceWith(this.content)
      this.editor = null
    }
    const send = async (event) => {
      event.preventDefault()
      if (words.value.trim() && (await this.acts.edit(this.turn, words.value.trim()))) close()
    }
    const keys = (event) => {
      if (event.key === 'Escape') close()
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send(event)
    }
    this.editor = h(
      'form',
      { class: 'editor', onsubmit: send, onkeydown: keys },
      words,
      h(
        'div',
        { class: 'choices' },
        h('button', { class: 'primary' }, 'Send'),
        h('button', { type: 'button', onclick: close }, 'Keep as it was'),
      ),
    )
    this.content.replaceWith(this.editor)
    words.focus()
  }

  #ask(action, text) {
    return askFor(action, text, (decision) => this.acts.answer(this.turn, decision))
  }
}

const STAGES = { processing: 'Asking the model', streaming: 'Writing', executing: 'Running tools' }

export function textOf(turn) {
  return turn.blocks
    .filter((block) => block.type === 'text')
    .map((block) => block.text)
    .join('\n\n')
}

/** What was said into the turn, but for what has become a block of it. */
function unheardOf({ unheard = [], blocks }) {
  const heard = blocks.filter((block) => block.type === 'user_text').map((block) => block.text)
  return unheard.filter((text) => !heard.includes(text))
}

function troubleOf(turn) {
  if (turn.error) return `The answer failed. ${turn.error.message}`
  if (turn.status === 'cancelled') return 'Stopped.'
  if (turn.stop_reason === 'max_tokens') return 'The answer was cut off at its longest length.'
  if (turn.stop_reason === 'max_tool_rounds') return 'The answer ended at the limit of its rounds.'
  return ''
}

function figuresOf({ created_at, ended_at, usage }) {
  if (!created_at || !ended_at) return ''
  const took = seconds((Date.parse(ended_at) - Date.parse(created_at)) / 1000)
  return usage.output_tokens ? `${took} · ${usage.output_tokens.toLocaleString('en')} tokens` : took
}
