// The turns of the open chat. Drawing is throttled by its own cost, so that a fast answer leaves the main thread idle.

import { find, h } from './dom.js'
import { TurnView } from './turn.js'

const GROUP = 20 // turns in a group; the browser skips the layout of a group that is far out of sight
const MIN_PAUSE = 30 // milliseconds between two drawings
const PAUSE_FACTOR = 5 // a drawing of one millisecond is followed by a pause of so many

export class Transcript {
  constructor(conversation, actions) {
    this.conversation = conversation
    this.actions = actions
    this.scroller = find('#transcript')
    this.turns = find('#turns')
    this.older = find('#older')
    this.down = find('#down')
    this.views = new Map()
    this.changed = new Set()
    this.sticks = true
    this.pause = 0
    this.scroller.addEventListener('scroll', () => this.#scrolled(), { passive: true })
    this.down.addEventListener('click', () => this.toEnd())
    this.older.addEventListener('click', () => this.#readOlder())
    conversation.on('path', () => this.#show())
    conversation.on('turn', (turn, event) => this.#change(turn, event))
  }

  toEnd() {
    this.sticks = true
    this.scroller.scrollTop = this.scroller.scrollHeight
  }

  /** Scrolls to a turn of the path. Reads older turns until the turn is there. */
  async reach(turn) {
    const { conversation } = this
    this.sticks = false
    while (conversation.through === turn && conversation.older && !this.views.has(turn)) await conversation.readOlder()
    this.views.get(turn)?.element.scrollIntoView()
  }

  view(turn) {
    return this.views.get(turn.id)
  }

  #show() {
    const { path, older } = this.conversation
    const shown = new Set(path.map((turn) => turn.id))
    for (const [id, view] of this.views) {
      if (shown.has(id)) continue
      view.remove()
      this.views.delete(id)
    }
    for (const group of this.turns.querySelectorAll(':scope > :empty')) group.remove()
    let last = null
    for (const turn of path) {
      const view = this.views.get(turn.id) ?? this.#add(turn, last)
      view.update(turn)
      last = view.element
    }
    this.older.hidden = !older
    if (this.sticks) this.toEnd()
  }

  /** Adds a turn after the element `last`. New turns are at the beginning or end of the path, so no group is split. */
  #add(turn, last) {
    const view = new TurnView(turn, this.actions)
    this.views.set(turn.id, view)
    let group = last?.parentElement
    if (!group || group.childElementCount >= GROUP) {
      const next = h('div', { class: 'group' })
      if (group) group.after(next)
      else this.turns.prepend(next)
      group = next
    }
    group.append(view.element)
    afterDrawing(() => {
      for (const element of [view.element, group]) element.classList.add('drawn')
    })
    return view
  }

  #change(turn, event) {
    const view = this.views.get(turn.id)
    if (!view) return
    if (event && !event.id) view.notice(event)
    this.changed.add(turn)
    this.#schedule()
  }

  #schedule() {
    if (this.scheduled) return
    this.scheduled = true
    setTimeout(() => requestAnimationFrame(() => this.#draw()), this.pause)
  }

  #draw() {
    const began = performance.now()
    this.scheduled = false
    for (const turn of this.changed) this.views.get(turn.id)?.update(turn)
    this.changed.clear()
    if (this.sticks) this.toEnd() // forces the layout, so that the measured time includes it
    this.pause = Math.max(MIN_PAUSE, PAUSE_FACTOR * (performance.now() - began))
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller
    this.sticks = scrollHeight - scrollTop - clientHeight < 60
    this.down.hidden = this.sticks
  }

  async #readOlder() {
    const { scrollHeight, scrollTop } = this.scroller
    this.sticks = false
    await this.conversation.readOlder()
    this.scroller.scrollTop = scrollTop + this.scroller.scrollHeight - scrollHeight
  }
}

/** Calls `work` after new elements were laid out once, so that the browser knows their height. */
function afterDrawing(work) {
  requestAnimationFrame(() => requestAnimationFrame(work))
}

/** Announces to screen readers that an answer began, waits or ended; never its text while it grows. */
export function announce(text) {
  const region = find('#announcements')
  region.replaceChildren(h('p', {}, text))
}
