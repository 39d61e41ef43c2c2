// The models of the server: reads the facts about them, and lets the person choose a model in a dialog.

import { asked, h } from './dom.js'
import { TEXTS } from './texts.js'

const { models: texts } = TEXTS

/** @type {string | undefined} of all prices, known when the list was read */
let currency

export class Models {
  constructor(client) {
    this.client = client
  }

  /** Returns all models, or none if they cannot be read. They are read only once. */
  async list() {
    this.reading ??= this.client.request('GET', '/api/models')
    try {
      const { models } = await this.reading
      currency ??= models.find((model) => model.currency)?.currency
      return models
    } catch {
      this.reading = undefined
      return []
    }
  }

  /** Returns the model of this name, or the server's default for null. Returns undefined if the model is not listed. */
  async find(name) {
    const models = await this.list()
    return models.find((model) => (name ? [model.id, ...model.aliases].includes(name) : model.default))
  }

  /** Asks for a model. Resolves to its id, or to '' if no model is chosen. */
  async choose(title, current) {
    const options = (await this.list()).map((model) => optionOf(model, current))
    return asked(
      title,
      h('div', { class: 'options' }, options.length ? options : texts.none),
      h('footer', {}, h('button', { value: '' }, TEXTS.keep)),
    )
  }
}

function optionOf(model, current) {
  const name = h('strong', {}, model.id, model.default && h('span', { class: 'hint' }, ` ${texts.standard}`))
  const facts = factsOf(model).map((fact) => h('span', { class: 'hint' }, fact))
  return h('button', { value: model.id, 'aria-current': model.id === current && 'true' }, name, facts)
}

function factsOf({ can, context_window, prices }) {
  return [
    can
      ?.filter((ability) => ability in texts.abilities)
      .map((ability) => texts.abilities[ability])
      .join(', '),
    context_window && texts.window(context_window.toLocaleString('en')),
    prices && texts.prices(amount(prices.input), amount(prices.output)),
  ].filter(Boolean)
}

/** Formats an amount in the currency of the prices, or as a plain number if the file of models names no currency. */
export const amount = (cost) =>
  cost.toLocaleString('en', { maximumSignificantDigits: 3, ...(currency && { style: 'currency', currency }) })
