/* eslint-disable */
// @ts-nocheck
// A shared worker: the chats of all tabs of a browser on one connection. shared.js speaks with it.

import { Client, Refused } from './turnstream.js'

const MOST = 100 // chats on one connection
const SIGN = 20_000 // milliseconds between two signs of life
const MOMENT = 20 // milliseconds, for tabs that come and go together

/** A tab that follows a chat, and where it has come to. */
class Follower {
  constructor(port, { chat, cursor }) {
    Object.assign(this, { port, chat, cursor })
  }

  get asked() {
    return this.cursor ? `${this.chat}@${this.cursor}` : this.chat
  }

  hear(event) {
    if (event.id) this.cursor = event.id
    this.port.postMessage({ event })
  }
}

/** The connection of all who have the same token. One that nobody needs any more is forgotten. */
class Line {
  constructor(token) {
    this.token = token
    this.client = new Client({ token: () => token })
    this.followers = new Set()
  }

  add(follower) {
    this.followers.add(follower)
    this.#begin()
  }

  remove(follower) {
    if (this.#drop(follower)) this.#begin()
  }

  /** Whether it was here. */
  #drop(follower) {
    const was = this.followers.delete(follower)
    if (was && !this.followers.size) lines.delete(this.token)
    return was
  }

  /** A new connection for those who are here now, each from where it has come to. */
  async #begin() {
    this.ending?.abort()
    const { signal } = (this.ending = new AbortController())
    await new Promise((resolve) => setTimeout(resolve, MOMENT))
    if (signal.aborted || !this.followers.size) return
    this.#end([...this.followers].slice(MOST), { full: true, message: 'the shared connection is full' })
    const followers = [...this.followers]
    try {
      await this.#read(followers, signal)
      this.#end(followers, {})
    } catch (error) {
      const status = error instanceof Refused && error.status
      if (!signal.aborted) this.#end(followers, { status, message: error.message })
    }
  }

  async #read(followers, signal) {
    const path = `/api/stream?${new URLSearchParams(followers.map((follower) => ['follow', follower.asked]))}`
    const connection = () => followers.forEach(({ port }) => port.postMessage({ open: true }))
    let current = null
    for await (const event of this.client.connect(path, { signal, connection })) {
      if (signal.aborted) continue // to the end that this makes
      if (event.event === 'following') current = followers[event.data.follow]
      else if (event.event === 'refused') this.#end([current], { status: 400, message: event.data.detail })
      else current.hear(event)
      if (event.event === 'chat_deleted') this.#drop(current)
    }
  }

  /** Who still follows comes back by itself, after a pause of its own. */
  #end(followers, end) {
    for (const follower of followers) {
      this.#drop(follower)
      follower.port.postMessage({ end })
    }
  }
}

const lines = new Map()

setInterval(() => {
  for (const line of lines.values()) for (const { port } of line.followers) port.postMessage({ here: true })
}, SIGN)

onconnect = ({ ports: [tab] }) => {
  tab.onmessage = ({ data: { token, held, ...asked }, ports: [port] }) => {
    if (!lines.has(token)) lines.set(token, new Line(token))
    const line = lines.get(token)
    const follower = new Follower(port, asked)
    const leave = () => line.remove(follower)
    port.onmessage = leave // the one thing that a tab says after it has asked
    if (held) navigator.locks.request(held, leave) // which is free once the tab is gone
    port.postMessage({ here: true })
    line.add(follower)
  }
}
