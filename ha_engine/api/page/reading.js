// The token with which the page reads, where the node asks for one.

/** The form in index.html. The token lives in this object, and nowhere else. */
export class Reading {
  token = ''; // as it was given
  taken = ''; // the same once the node that serves the page has taken it: fit for the peers

  constructor() {
    this.form = document.getElementById('reading');
    this.field = document.getElementById('read-token');
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.token = this.field.value.trim();
      this.field.value = '';
    });
  }

  /** @param {boolean} needed whether the node that serves the page has refused */
  ask(needed) {
    if (this.form.hidden !== needed) return;
    this.form.hidden = !needed;
    if (needed && document.activeElement === document.body) this.field.focus();
  }
}
