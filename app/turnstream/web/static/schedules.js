// Schedules and triggers: the dialog that creates, changes, pauses, runs and deletes them, and shows the next and last
// run.

import { asked, attempts, confirmed, copy, h, iconButton } from './dom.js'
import { TEXTS } from './texts.js'

const { schedules: texts } = TEXTS
const MINUTE = 60 // seconds
const LOOK = 1000 // milliseconds between two looks at a run that has not ended
const WRITTEN = ['name', 'chat', 'request', 'cron', 'every', 'zone', 'missed', 'grace', 'body', 'per_minute', 'paused']

export async function showSchedules(client, chat) {
  const [{ schedules }, { triggers }] = await Promise.all([
    client.request('GET', '/api/schedules'),
    client.request('GET', '/api/triggers'),
  ])
  const list = h('ul', { class: 'links' })
  const none = h('p', { class: 'hint' }, texts.none)
  const { trouble, attempt: tried } = attempts()
  const attempt = async (work) => {
    await tried(work)
    none.hidden = list.children.length > 0
  }
  const add = (each) => list.append(itemOf(client, each, attempt))
  await attempt(() => [...schedules, ...triggers].forEach(add))
  await asked(
    texts.title,
    h('p', { class: 'hint' }, texts.about),
    list,
    none,
    newForm(client, chat, attempt, add),
    trouble,
    h('footer', {}, h('button', { value: '' }, TEXTS.close)),
  )
}

/** Creates the item of a schedule, or of a trigger, which has a path. The item is drawn again after each change. */
function itemOf(client, each, attempt) {
  const path = each.path ? `/api/triggers/${each.id}` : `/api/schedules/${each.id}`
  const change = (work) => () =>
    attempt(async () => {
      await work()
      item.replaceWith(itemOf(client, await client.request('GET', path), attempt))
    })
  const put = (changes) => client.request('PUT', path, { ...written(each), ...changes })
  const remove = () =>
    attempt(async () => {
      if (!(await confirmed(texts.removeQuestion(each.name), texts.removeNote, TEXTS.remove))) return
      await client.request('DELETE', path)
      item.remove()
    })
  const secret = () =>
    attempt(async () => {
      const made = await client.request('POST', `${path}/secrets`, {})
      item.replaceWith(itemOf(client, made, attempt))
    })
  const pause = each.paused
    ? iconButton(
        'again',
        texts.resume(each.name),
        change(() => put({ paused: false })),
      )
    : iconButton(
        'pause',
        texts.pause(each.name),
        change(() => put({ paused: true })),
      )
  const run = iconButton(
    'now',
    texts.run(each.name),
    change(() => client.request('POST', `${path}/run`)),
  )
  const edit = () => {
    const show = (now) => item.replaceWith(itemOf(client, { ...now, secret: each.secret }, attempt))
    item.replaceChildren(changeForm(each, put, attempt, show))
    item.querySelector('select, input').focus()
  }
  const words = h('div', {}, h('bdi', {}, each.name), ...about(each))
  const more = each.path ? iconButton('key', texts.secret(each.name), secret) : run
  const editing = iconButton('edit', texts.edit(each.name), edit)
  const item = h(
    'li',
    { class: 'row' },
    words,
    editing,
    pause,
    more,
    iconButton('bin', texts.remove(each.name), remove),
  )
  if (['pending', 'started'].includes(each.last_run?.state)) setTimeout(refresh, LOOK)
  return item

  async function refresh() {
    if (!item.isConnected) return
    const focused = item.contains(document.activeElement) || item.querySelector('section')
    const now = focused ? each : await client.request('GET', path).catch(() => each)
    if (focused || now === each) setTimeout(refresh, LOOK)
    else item.replaceWith(itemOf(client, { ...now, secret: each.secret }, attempt))
  }
}

const written = (each) => Object.fromEntries(WRITTEN.filter((name) => name in each).map((name) => [name, each[name]]))

function about(each) {
  const rule = each.path ? texts.signed(each.per_minute) : each.cron ? `${each.cron} ${each.zone}` : every(each.every)
  const next = each.paused ? texts.paused[each.paused] : each.path ? null : texts.next(timeOf(each.next_at))
  const lines = [h('p', { class: 'hint' }, [rule, next].filter(Boolean).join(' · '))]
  const last = each.last_run
  if (last) {
    const outcome = texts.last(timeOf(last.tick), texts.states[last.state])
    const link = last.chat ? h('a', { href: `#${last.chat}`, onclick: closeDialog }, outcome) : outcome
    lines.push(h('p', { class: last.state === 'failed' ? 'trouble' : 'hint' }, link, last.error && ` · ${last.error}`))
  }
  if (each.path) lines.push(copied(texts.address, new URL(each.path, location.href).href))
  if (each.secret) lines.push(h('p', { class: 'hint' }, texts.once), copied(texts.secretField, each.secret))
  return lines
}

const closeDialog = ({ target }) => target.closest('dialog').close()

function copied(label, value) {
  const field = h('input', { readonly: true, value, 'aria-label': label })
  field.addEventListener('focus', () => field.select())
  const copying = iconButton('copy', texts.copy(label), () => copy(copying, value))
  return h('div', { class: 'address' }, field, copying)
}

const timeOf = (time) => new Date(time).toLocaleString()
const every = (seconds) => texts.every(Math.round((seconds / MINUTE) * 100) / 100)

/** Creates the fields of a schedule or trigger, with the values of `each`, and a function that returns their body. */
function fieldsOf(each, kind) {
  const name = h('input', { type: 'text', maxlength: 300, autocomplete: 'off', value: each.name ?? '' })
  const message = h('textarea', { rows: 2, dir: 'auto' })
  const blocks = each.request?.blocks ?? []
  const first = blocks.find((block) => block.type === 'text')
  message.value = first?.text ?? ''
  const minutes = h('input', { type: 'number', min: 0, step: 'any', value: (each.every ?? 60 * MINUTE) / MINUTE })
  const cron = h('input', {
    type: 'text',
    placeholder: '30 7 * * 1-5',
    autocomplete: 'off',
    spellcheck: 'false',
    value: each.cron ?? '',
  })
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone
  const zone = h('input', { type: 'text', value: each.cron ? each.zone : own, spellcheck: 'false' })
  const options = Object.entries(texts.policies).map(([value, text]) => h('option', { value }, text))
  const missed = h('select', {}, ...options)
  missed.value = each.missed ?? 'run_once'
  const most = h('input', { type: 'number', min: 1, max: 600, value: each.per_minute ?? 60 })
  const late = h('label', {}, texts.missed, missed)
  const rules = {
    every: [h('label', {}, texts.minutes, minutes), late],
    cron: [h('label', {}, texts.cron, cron), h('label', {}, texts.zone, zone), late],
    trigger: [h('label', {}, texts.most, most)],
  }
  const place = h('div', { class: 'pair' })
  const show = () => place.replaceChildren(...rules[kind.value])
  kind.addEventListener('change', show)
  show()
  const body = () => {
    const text = { type: 'text', text: message.value }
    const changed = first ? blocks.map((block) => (block === first ? { ...first, ...text } : block)) : [text, ...blocks]
    const rule = {
      every: { every: Number(minutes.value) * MINUTE, cron: null, missed: missed.value },
      cron: { cron: cron.value, every: null, zone: zone.value, missed: missed.value },
      trigger: { per_minute: Number(most.value) },
    }[kind.value]
    return { name: name.value, request: { ...each.request, blocks: changed }, ...rule }
  }
  const clear = () => (name.value = message.value = '')
  return { body, clear, rows: [place, h('label', {}, texts.name, name), h('label', {}, texts.words, message)] }
}

const kindsFor = (names) => h('select', {}, ...names.map((value) => h('option', { value }, texts.kinds[value])))

function newForm(client, chat, attempt, add) {
  const kind = kindsFor(Object.keys(texts.kinds))
  const here = h('input', { type: 'checkbox', disabled: !chat })
  const { body, clear, rows } = fieldsOf({}, kind)
  const create = () =>
    attempt(async () => {
      const path = kind.value === 'trigger' ? '/api/triggers' : '/api/schedules'
      add(await client.request('POST', path, { ...body(), ...(here.checked && { chat }) }))
      clear()
    })
  return h(
    'section',
    { 'aria-label': texts.new },
    h('h3', {}, texts.new),
    h('label', {}, texts.kind, kind),
    ...rows,
    h('label', { class: 'tick' }, here, texts.here),
    h('button', { type: 'button', class: 'primary', onclick: create }, texts.add),
  )
}

/**
 * Creates the form that changes a schedule or a trigger. The form keeps the kind (schedule or trigger) and `paused`.
 */
function changeForm(each, put, attempt, show) {
  const kind = kindsFor(each.path ? ['trigger'] : ['every', 'cron'])
  kind.value = each.path ? 'trigger' : each.cron ? 'cron' : 'every'
  const { body, rows } = fieldsOf(each, kind)
  const save = () => attempt(async () => show(await put({ ...body(), paused: Boolean(each.paused) })))
  return h(
    'section',
    { 'aria-label': texts.edit(each.name) },
    !each.path && h('label', {}, texts.kind, kind),
    ...rows,
    h(
      'div',
      { class: 'pair' },
      h('button', { type: 'button', class: 'primary', onclick: save }, texts.save),
      h('button', { type: 'button', onclick: () => show(each) }, texts.keep),
    ),
  )
}
