// The token with which the page reads, where the node asks for one.

/** The form in index.html. The token lives in this object, and nowhere else. */
export class Reading {
  token = '';

  constructor() {
    this.form = document.getElementById('reading');
    this.field = document.getElementById('read-token');
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.token = this.field.value.trim();
      this.field.value = '';
    });
  }

  /** @returns {Record<string, string>} what a GET of the API needs */
  get headers() {
    return this.token ? {Authorization: `Bearer ${this.token}`} : {};
  }

  /** @param {boolean} needed whether the node that serves the page has refused */
  ask(needed) {
    if (this.form.hidden !== needed) return;
    this.form.hidden = !needed;
    if (needed) this.field.focus();
  }
}
