// The job of a call: where it runs and for how long, what its agent does and costs, and how to stop it.

import { h, iconButton, setText } from './dom.js'
import { amount } from './models.js'
import { TEXTS } from './texts.js'

const { jobs: texts } = TEXTS

const TICK = 1_000 // milliseconds

export class JobBar {
  /** `stop` stops the call named `name`, and nothing else of its turn. */
  constructor(name, stop) {
    this.state = h('span', { class: 'where' })
    this.time = h('span', { class: 'elapsed', role: 'timer' })
    this.cost = h('span', { class: 'cost' })
    this.open = h('a', { 'aria-label': texts.openName(name) }, texts.open)
    this.stop = iconButton('stop', texts.stop(name), async () => {
      this.stop.disabled = true
      this.stop.disabled = await stop()
    })
    this.element = h('div', { class: 'job', hidden: true }, this.state, this.time, this.cost, this.stop)
  }

  /** Without a `job` the bar is hidden. */
  update(job) {
    this.job = job
    this.element.hidden = !job
    clearInterval(this.timer)
    if (!job) return
    const { child } = job
    setText(this.state, (child && texts.children[child.status]) ?? texts.states[job.state] ?? job.state)
    setText(this.cost, child?.cost ? amount(child.cost) : '')
    if (child) {
      this.open.href = `#${child.chat}/${child.turn}`
      this.stop.before(this.open)
    } else this.open.remove()
    this.#tick()
    this.timer = setInterval(() => this.#tick(), TICK)
  }

  #tick() {
    if (!this.element.isConnected && this.time.textContent) return clearInterval(this.timer)
    const seconds = this.job.since ? Math.max(0, (Date.now() - Date.parse(this.job.since)) / 1000) : 0
    setText(this.time, clock(seconds))
  }

  remove() {
    clearInterval(this.timer)
  }
}

/** Formats a duration like a watch: `0:07`, `12:30`, `1:02:03`. */
export function clock(/** @type {number} */ seconds) {
  const whole = Math.floor(seconds)
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60]
  const shown = parts[0] ? parts : parts.slice(1)
  return shown.map((part, place) => (place ? String(part).padStart(2, '0') : part)).join(':')
}
