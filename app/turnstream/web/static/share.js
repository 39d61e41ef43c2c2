// Links to a chat, for people without a credential: the dialog that creates, lists and revokes the links.

import { asked, copy, h, icon, iconButton } from './dom.js'
import { TEXTS } from './texts.js'

const { share: texts } = TEXTS
const DAY = 86_400 // seconds

export async function shareChat(client, conversation) {
  const { shares } = await client.request('GET', `/api/shares?chat=${conversation.id}`)
  const tick = (name, text) => h('label', { class: 'tick' }, h('input', { name, type: 'checkbox' }), text)
  const options = texts.days.map(([days, text]) => h('option', { value: days }, text))
  const fields = h(
    'div',
    {},
    tick('live', texts.live),
    tick('results', texts.results),
    tick('files', texts.files),
    h('label', {}, texts.expires, h('select', { name: 'days' }, ...options)),
  )
  const links = h('ul', { class: 'links' })
  const add = (share) => links.prepend(itemOf(client, share))
  shares.reverse().forEach(add)
  const making = h('button', { type: 'button', class: 'primary' }, texts.make)
  const trouble = h('p', { class: 'trouble', role: 'alert' })
  making.addEventListener('click', async () => {
    const value = (name) => /** @type {any} */ (fields.querySelector(`[name=${name}]`))
    const days = Number(value('days').value)
    const body = {
      live: value('live').checked,
      results: value('results').checked,
      files: value('files').checked,
      ...(days && { seconds: days * DAY }),
      ...(!value('live').checked && { turn: conversation.path.at(-1)?.id }),
    }
    trouble.textContent = ''
    try {
      add(await client.request('POST', `/api/chats/${conversation.id}/shares`, body))
    } catch (error) {
      trouble.textContent = error.message
    }
  })
  await asked(texts.title, fields, trouble, links, h('footer', {}, h('button', { value: '' }, TEXTS.close), making))
}

function itemOf(client, share) {
  const about = [
    share.live ? texts.isLive : texts.isSnapshot,
    share.results && texts.withResults,
    share.files && texts.withFiles,
    share.expires_at && texts.until(new Date(share.expires_at).toLocaleDateString()),
  ]
  const item = h('li', {}, h('span', { class: 'hint' }, about.filter(Boolean).join(' · ')))
  if (share.path) {
    const address = new URL(share.path, location.href).href
    const field = h('input', { readonly: true, value: address, 'aria-label': texts.address })
    field.addEventListener('focus', () => field.select())
    const copying = iconButton('copy', texts.copy, () => copy(copying, address))
    item.prepend(h('div', { class: 'address' }, field, copying))
  }
  const revoking = h(
    'button',
    { type: 'button', class: 'quiet', title: texts.revoke, 'aria-label': texts.revoke },
    icon('bin'),
  )
  revoking.addEventListener('click', async () => {
    await client.request('DELETE', `/api/shares/${share.id}`)
    item.remove()
  })
  item.append(revoking)
  return item
}
